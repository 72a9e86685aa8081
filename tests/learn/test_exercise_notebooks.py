"""The exercises as a notebook, in a real kernel: empty at first, then filled in."""

from pathlib import Path

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient

import simdformer as sf
from simdformer.learn.exercises import EXERCISES, HINTS, solution, solutions
from simdformer.learn.exercises.notebook import unformatted
from simdformer.learn.exercises.story import NEEDED, Use, story_of


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


def test_a_notebook_that_is_filled_in_writes_a_story(notebook):
    for cell in notebook.cells:
        for name in EXERCISES:
            if cell.source.startswith(f"def {name}("):
                cell.source = solution(name)
    outputs = executed(notebook)
    for name in EXERCISES:
        assert "right" in text(outputs[f'sf.exercises.check("{name}")']), name
    assert f"{len(EXERCISES)} right" in text(outputs["sf.exercises.check(globals())"])
    told = text(outputs["sf.exercises.story()"])
    assert "Once upon a time there was" in told
    assert "tokens are those that simdformer writes" in told


def test_a_name_means_the_function_that_the_caller_has():
    names = {"sf": sf}
    exec("def silu(x):\n    return x * 0", names)
    exec("result = sf.exercises.check('silu')", names)
    assert not names["result"].ok
    with pytest.raises(ValueError, match=r"there is no function softmax here, needs one; run"):
        exec("sf.exercises.check('softmax')", names)


def test_the_story_uses_all_functions_that_it_asks_for():
    """Each is called, by the story or by another one of them."""
    seen = set()

    def counted(name, function):
        def call(*arguments, **options):
            seen.add(name)
            return function(*arguments, **options)

        return call

    exec(Path(solutions.__file__).read_text(encoding="utf-8"), names := {})
    for name in EXERCISES:
        names[name] = counted(name, names[name])
    told = story_of(names, names, "Once", max_new_tokens=3)
    assert seen == set(NEEDED)
    assert told.same == len(told.ids) == 3
    assert 0 < told.loss < 20


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
