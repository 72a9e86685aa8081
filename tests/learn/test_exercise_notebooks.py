"""The exercises as notebooks, in a real kernel, empty at first and then filled in: those of
`simdformer learn`, and the twins of the project's notebooks."""

import ast
import re
import sys
from functools import partial
from pathlib import Path

import jupytext
import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient

import simdformer as sf
from simdformer.learn.exercises import EXERCISES, HINTS, solution, solutions
from simdformer.learn.exercises.little_sister import TRAINED_BY, trained_by
from simdformer.learn.exercises.notebook import unformatted
from simdformer.learn.exercises.story import NEEDED, QUESTION, Use, story_of

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
sys.path.append(str(FOLDER))
import twins  # noqa: E402

TWINS = [source for source in sorted(FOLDER.glob("[0-9]*.py")) if twins.has_twin(source)]
each_twin = pytest.mark.parametrize("source", TWINS, ids=lambda source: source.stem)


@pytest.fixture
def notebook(tmp_path):
    return nbformat.read(sf.exercises.write(tmp_path / "mine.ipynb"), as_version=4)


def executed(notebook):
    NotebookClient(notebook, timeout=600, kernel_name="python3", allow_errors=True).execute()
    return {cell.source: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}


def text(outputs):
    return "".join(
        output.get("text", "")
        or output.get("data", {}).get("text/plain", "")
        or output.get("evalue", "")
        for output in outputs
    )


def test_every_exercise_has_a_cell_a_check_and_folded_help(notebook):
    nbformat.validate(notebook)
    cells = [cell.source for cell in notebook.cells]
    for name in EXERCISES:
        check = cells.index(f'sf.exercises.check("{name}")')
        assert cells[check - 1].startswith(f"def {name}(")
        assert cells[check - 1].endswith("raise NotImplementedError")
        help = cells[check + 1]
        assert help.count("<details>") == help.count("</details>") == len(HINTS[name]) + 1
        assert solution(name).strip() in help
    assert all(not cell.get("outputs") for cell in notebook.cells)
    assert unformatted("a * b_c[0]") == r"a \* b\_c\[0\]"


def test_an_empty_notebook_says_what_is_not_written(notebook):
    outputs = executed(notebook)
    for name in EXERCISES:
        assert "not written yet" in text(outputs[f'sf.exercises.check("{name}")']), name
    assert f"{len(EXERCISES)} not written yet" in text(outputs["sf.exercises.check(globals())"])
    told = text(outputs["sf.exercises.story()"])
    assert f"softmax, causal_mask, scaled_dot_product_attention and {len(NEEDED) - 3} more" in told
    told = text(outputs["trained = sf.exercises.train()\ntrained"])
    assert (
        f"softmax, causal_mask, scaled_dot_product_attention and {len(TRAINED_BY) - 3} more" in told
    )


@pytest.mark.slow
def test_a_notebook_that_is_filled_in_writes_a_story(notebook):
    for cell in notebook.cells:
        for name in EXERCISES:
            if cell.source.startswith(f"def {name}("):
                cell.source = solution(name)
        cell.source = cell.source.replace("train()", "train(steps=12)")
    outputs = executed(notebook)
    for name in EXERCISES:
        assert "right" in text(outputs[f'sf.exercises.check("{name}")']), name
    assert f"{len(EXERCISES)} right" in text(outputs["sf.exercises.check(globals())"])
    told = text(outputs["sf.exercises.story()"])
    assert "Once upon a time there was" in told
    assert "tokens are those that simdformer writes" in told
    told = text(outputs["trained = sf.exercises.train(steps=12)\ntrained"])
    assert "Your functions train a model: 12 steps" in told
    (*_, curve) = outputs["sf.plots.loss_curve(trained.losses)"]
    assert "image/png" in curve.data


def test_a_name_means_the_function_that_the_caller_has():
    names = {"sf": sf}
    exec("def silu(x):\n    return x * 0", names)
    exec("result = sf.exercises.check('silu')", names)
    assert not names["result"].ok
    with pytest.raises(ValueError, match=r"there is no function softmax here, needs one; run"):
        exec("sf.exercises.check('softmax')", names)
    with pytest.raises(ValueError, match=r"no exercise is called 'sofmax'; is softmax meant\?"):
        sf.exercises.check("sofmax")
    with pytest.raises(FileNotFoundError):
        sf.exercises.check("nowhere.py")


def functions():
    """The solutions as somebody's names."""
    exec(Path(solutions.__file__).read_text(encoding="utf-8"), names := {})
    return names


def counted(seen, name, function):
    """The function, which says that it was called."""

    def call(*arguments, **options):
        seen.add(name)
        return function(*arguments, **options)

    return call


def test_the_story_uses_all_functions_that_it_asks_for():
    """Each is called, by the story or by another one of them."""
    names, seen = functions(), set()
    for name in EXERCISES:
        names[name] = counted(seen, name, names[name])
    told = story_of(names, names, "Once", max_new_tokens=3)
    assert seen == set(NEEDED)
    assert list(NEEDED) == [name for name, one in EXERCISES.items() if one.chapter < "7"]
    assert told.same == len(told.ids) == 3
    model = sf.from_pretrained(sf.demo_path())
    assert told.loss == pytest.approx(model.loss("Once" + told.text).mean(), rel=1e-4)
    chat = [{"role": "user", "content": QUESTION}]
    tokenizer = model.tokenizer
    asked = names["chat_ids"](chat, partial(tokenizer.encode, bos=False), tokenizer.special)
    assert told.answer == tokenizer.decode(model.generate(asked, max_new_tokens=3))


def test_training_uses_all_functions_that_it_asks_for():
    names, seen = functions(), set()
    for name, function in list(names.items()):
        if name in EXERCISES:
            names[name] = counted(seen, name, function)
    told = trained_by(names, names, steps=8)
    assert set(TRAINED_BY) <= seen
    assert told.ok
    assert told.same == (5, 5)
    assert told.losses[0] == pytest.approx(np.log(1024), abs=0.1)
    assert told.losses[-1] < told.losses[0] - 1
    assert told.before != told.after
    drawn = repr(told).splitlines()
    assert any(line.startswith(f"  {told.losses[0]:5.2f} │●") for line in drawn)
    assert max(map(len, drawn)) <= 80


def test_a_loss_that_is_not_the_right_one_is_said():
    """A function that is right in the exercise's calls, and wrong where the model is larger."""
    names = functions()
    right = names["linear_backward"]

    def linear_backward(grad, x, weight):
        dx, dw, db = right(grad, x, weight)
        return dx, dw if len(weight) < 1024 else 0 * dw, db

    told = trained_by(names | {"linear_backward": linear_backward}, names, steps=3)
    assert not told.ok
    assert told.same == (1, 3)
    assert "The loss of step 2 is not the one that simdformer finds." in repr(told)


def test_training_with_tensors_is_the_same():
    """Those functions that PyTorch's autograd makes are as right as those that are written out."""
    source = Path(__file__).parent / "solutions/pytorch.py"
    exec(source.read_text(encoding="utf-8"), of_torch := {})
    mine = {**functions(), **of_torch}
    told = trained_by(mine, mine, steps=3)
    assert told.same == (3, 3)


def test_training_that_is_impossible_is_refused():
    with pytest.raises(ValueError, match=r"^exercises\.train: seconds is -1, needs a number > 0"):
        sf.exercises.train({}, -1)
    with pytest.raises(ValueError, match=r"^exercises\.train: steps is 0, needs a number > 0"):
        sf.exercises.train({}, steps=0)
    with pytest.raises(
        sf.exercises.NotRight, match=r"softmax, causal_mask, .* and 16 more are not"
    ):
        sf.exercises.train({})


def test_a_function_of_pytorch_gets_tensors():
    exec(
        "import torch\ndef embedding(ids, weight):\n"
        "    return torch.nn.functional.embedding(ids, weight).bfloat16()",
        names := {},
    )
    use = Use(names, names)
    table = np.eye(5, dtype=np.float32)
    (rows,) = use("embedding", np.arange(3), table)
    assert rows.dtype == "float32"
    assert rows.shape == (3, table.shape[1])

    def changes(ids, weight):
        ids += 1
        return weight[ids]

    with pytest.raises(ValueError, match=r"^exercises\.story: embedding changed its input ids"):
        Use({"embedding": changes}, {})("embedding", np.arange(3), table)


# ---- twins ---------------------------------------------------------------------------------------


def answers(cells):
    """Each code cell of a twin with the definitions that stand folded below it."""
    for cell, following in zip(cells, [*cells[1:], None], strict=True):
        if cell.cell_type == "code":
            folded = re.search(
                r"```python\n(.*?)\n```\n\n</details>", (following or {}).get("source", ""), re.S
            )
            yield cell.source, folded[1] if folded else ""


def filled(cell, answer):
    """The cell with these definitions in place of those that are left out."""
    given = {
        name: ast.get_source_segment(answer, node)
        for node in ast.parse(answer).body
        for name in twins.names_of(node)
    }
    lines = cell.splitlines()
    for node in reversed(ast.parse(twins.without_magic(cell)).body):
        names = twins.names_of(node) if isinstance(node, twins.Definition) else []
        if names and all(name in given for name in names):
            lines[node.lineno - 1 : node.end_lineno] = given[names[0]].splitlines()
    return "\n".join(lines)


@each_twin
def test_a_twin_is_up_to_date_and_linked_with_its_notebook(source):
    kept = nbformat.read(FOLDER / twins.FOLDER / f"{source.stem}.ipynb", as_version=4)
    nbformat.validate(kept)
    assert kept == twins.twin(source), "run `make notebooks`"
    assert f"(../{source.stem}.ipynb)" in kept.cells[0].source
    assert f"(exercises/{source.stem}.ipynb)" in source.read_text(encoding="utf-8")
    for cell in kept.cells:
        if cell.cell_type == "markdown":
            for link in re.findall(r"\]\((?!https?:|#)([^)\s]+)\)", cell.source):
                assert (FOLDER / twins.FOLDER / link).exists(), link
    assert {path.stem for path in (FOLDER / twins.FOLDER).iterdir()} == {one.stem for one in TWINS}


@each_twin
def test_a_twin_and_its_answers_are_the_notebook(source):
    ours = [cell.source for cell in jupytext.read(source).cells if cell.cell_type == "code"]
    left_out = 0
    for (cell, answer), whole in zip(answers(twins.twin(source).cells), ours, strict=True):
        if answer:
            assert cell != whole
            left_out += len(ast.parse(answer).body)
            cell, whole = (ast.dump(ast.parse(code)) for code in (filled(cell, answer), whole))
        assert cell == whole
    assert left_out >= 6


@pytest.mark.slow
def test_a_twin_that_is_not_filled_in_stops_at_the_first_step():
    outputs = executed(twins.twin(TWINS[0]))
    for cell, said in outputs.items():
        if "def naive_softmax" in cell:
            assert [output.ename for output in said] == ["NotImplementedError"]


def test_what_is_left_out_of_a_cell():
    code = [
        'def f(x):\n    """Doc"""\n    return x + 1\n\nkept = 1\na, b = f(1), kept  # two',
        (
            "def g(x):\n    return x\nc = g(2) + 1  # (1,)\nother = g(3)\nclass K:\n"
            "    def __init__(self):\n        self.w = 1\n    def call(self, x):\n        return x"
        ),
        (
            "sf.check(sf.silu, f(a), a).raise_if_wrong()\n"
            "sf.check(sf.silu, c, 1).raise_if_wrong()\n"
            "report = sf.check(sf.silu, other, 1)\nk = K()\nfor i in range(2):\n    y = k.call(i)\n"
            "    sf.check(sf.silu, y, i).raise_if_wrong()"
        ),
    ]
    nodes = twins.to_write([ast.parse(cell) for cell in code])
    empty = [twins.emptied(cell, some) for cell, some in zip(code, nodes, strict=True)]
    assert empty == [
        (
            'def f(x):\n    """Doc"""\n    raise NotImplementedError\n\nkept = 1\n'
            "a, b = f(1), kept  # two"
        ),
        (
            "def g(x):\n    raise NotImplementedError\nc = ...  # (1,)\nother = g(3)\nclass K:\n"
            "    def __init__(self):\n        self.w = 1\n    def call(self, x):\n"
            "        raise NotImplementedError"
        ),
        code[2],
    ]


def test_a_notebook_shows_the_line_of_a_check_and_the_report_alone():
    code = (
        "import numpy as np\nimport simdformer as sf\ndef silu(x):\n    return x\n"
        "sf.check(sf.silu, silu(np.ones(3)), np.ones(3)).raise_if_wrong()"
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    ((output,),) = executed(notebook).values()
    where, _, report = output.traceback
    assert where == f"line 5: {code.splitlines()[-1]}"
    assert report.startswith("CheckError: ✗ silu (3,)")


def test_an_ellipsis_is_no_answer():
    with pytest.raises(
        TypeError, match=r"^check: mine is `\.\.\.`, needs an array; write your code"
    ):
        sf.check(sf.silu, ..., np.ones(3))
