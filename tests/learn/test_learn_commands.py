"""`simdformer learn` and `simdformer check`, as somebody types them."""

import re
from pathlib import Path

import nbformat
import pytest

import simdformer as sf
from simdformer import cli
from simdformer.learn.exercises import EXERCISES, HINTS, solutions

NUMPY = Path(solutions.__file__).read_text()


def narrow(text):
    """It fits a terminal of 80 columns."""
    return max(map(len, text.splitlines())) <= 80


@pytest.fixture
def write(write):
    return lambda data, name="my_attention.py": write(data, name)


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        code = cli.main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_learn_writes_functions_without_bodies_and_never_overwrites(run, tmp_path):
    code, out, err = run("learn")
    assert (code, err) == (0, "")
    assert f"Welcome. my_attention.py holds {len(EXERCISES)} functions" in out
    assert "\n    simdformer check my_attention.py softmax\n" in out
    assert narrow(out)
    text = (tmp_path / "my_attention.py").read_text()
    assert "simdformer check my_attention.py" in text
    assert "mypy" not in text
    compile(text, "my_attention.py", "exec")
    code, out, err = run("learn")
    assert (code, out) == (2, "")
    assert "my_attention.py: there is such a file already and it stays as it is" in err
    assert "`simdformer check my_attention.py` says how far it is" in err

    code, out, err = run("check", "my_attention.py")
    assert (code, err) == (1, "")
    assert f"my_attention.py: {len(EXERCISES)} not written yet" in out
    assert run("learn", "--out", "other.py")[0] == 0
    assert "simdformer check other.py" in (tmp_path / "other.py").read_text()


def test_learn_lists_what_there_is(run, tmp_path):
    code, out, _ = run("learn", "--list")
    assert code == 0
    for exercise in EXERCISES.values():
        assert exercise.signature in out
        assert exercise.summary in " ".join(out.split())
    assert narrow(out)
    assert list(tmp_path.iterdir()) == []


def test_check_exits_with_0_1_and_2(run, write):
    assert run("check", write("def embedding(ids, weight):\n    return weight[ids]"))[0] == 1
    code, out, _ = run("check", write(NUMPY))
    assert code == 0
    assert out.count("✓") == len(EXERCISES)
    code, out, err = run("check", "nowhere.py")
    assert (code, out, err) == (2, "", "simdformer: error: nowhere.py: No such file or directory\n")
    code, _, err = run("check", write("def f(:"))
    assert code == 2
    assert err.count("\n") == 1


def test_check_looks_at_one_function(run, write):
    file = write("import numpy as np\ndef silu(x):\n    return np.maximum(x, 0)\n")
    code, out, err = run("check", file, "silu")
    assert (code, err) == (1, "")
    assert out.startswith("✗ silu  this is relu instead of silu\n")
    assert "fix: " in out
    assert out.endswith(f"stuck?  simdformer check {file} silu --hint\n")
    assert "not in the file" not in out
    code, out, _ = run(
        "check", write("def embedding(ids, weight):\n    return weight[ids]"), "embedding"
    )
    assert (code, out) == (0, f"✓ embedding  3 calls are right\ngo on:  simdformer check {file}\n")
    code, out, _ = run("check", file, "silu")
    assert (code, out.splitlines()[-2]) == (1, "not in the file: silu")


def test_check_refuses_names_that_are_none(run, write):
    file = write(NUMPY)
    for options in ([], ["--hint"], ["--solution"]):
        code, out, err = run("check", file, "sofmax", *options)
        assert (code, out) == (2, "")
        assert err == "simdformer: error: no exercise is called 'sofmax'; is softmax meant?\n"
    assert "they are called softmax, causal_mask" in run("check", file, "qwertz")[2]
    code, out, err = run("check", file, "--hint")
    assert (code, out) == (2, "")
    assert (
        err
        == f"simdformer: error: --hint: of which function? simdformer check {file} NAME --hint\n"
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", EXERCISES)
def test_there_are_three_hints_and_a_solution_of_each(run, name):
    assert len(HINTS[name]) == 3
    for number, hint in enumerate(HINTS[name], start=1):
        code, out, _ = run("check", "my.py", name, "--hint", number)
        assert code == 0
        assert out.startswith(f"{name}, hint {number} of 3\n")
        assert hint in " ".join(out.split())
        following = f"--hint {number + 1}" if number < 3 else "--solution"
        assert out.endswith(f"more:   simdformer check my.py {name} {following}\n")
        assert narrow(out)
    code, out, _ = run("check", "my.py", name, "--solution")
    assert code == 0
    assert f"def {name}(" in out
    compile(out, "solution", "exec")


def test_the_name_may_stand_behind_options(run):
    wanted = run("check", "my.py", "softmax", "--solution")
    assert run("check", "my.py", "--solution", "softmax") == wanted
    assert run("check", "my.py", "--solution", "--seconds", 5, "softmax") == wanted


def test_the_first_hint_needs_no_number(run):
    assert run("check", "my.py", "softmax", "--hint") == run(
        "check", "my.py", "softmax", "--hint", 1
    )


def test_solutions_bring_the_functions_that_are_no_exercises(run):
    _, out, _ = run("check", "my.py", "rope_half", "--solution")
    assert out.startswith("import numpy as np\n\n# calls rope_frequencies\n\n\ndef turned(")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", EXERCISES)
def test_a_solution_runs_where_it_is_pasted(run, name):
    """Beside those of the exercises that it says it calls, in an empty session."""
    pasted, todo = {}, [name]
    while todo:
        one = todo.pop()
        if one not in pasted:
            _, pasted[one], _ = run("check", "my.py", one, "--solution")
            (calls,) = re.findall(r"^# calls (.*)$", pasted[one], re.M) or [""]
            todo += calls.split(", ") if calls else []
    exec("\n".join(pasted.values()), names := {})
    assert sf.exercises.check(names[name]).ok


def test_after_the_last_function_nothing_is_left_to_do(run, write, tmp_path):
    _, out, _ = run("check", write(NUMPY))
    assert out.endswith(
        f"You have written a transformer. Let it write and learn: simdformer learn --run "
        f"{tmp_path}/my_attention.py\n"
    )


@pytest.mark.slow
def test_the_functions_of_a_file_write_a_story(run, write):
    write(NUMPY)  # as the file that `learn` writes
    code, out, err = run("learn", "--run", "--seconds", "0.1")
    assert (code, err) == (0, "")
    assert "| Once upon a time there was" in out
    assert "Your functions train a model: 11 steps, 7,040 tokens" in out
    assert "The losses of the first 5 steps are those that simdformer finds." in out
    assert re.search(r"all \d+ tokens are those that simdformer writes; loss 0\.\d+ nats", out)
    assert narrow(out)
    broken = write(NUMPY.replace("np.repeat(", "np.roll("), "other.py")
    code, out, err = run("learn", "--run", broken)
    assert (code, out) == (2, "")
    assert "exercises.story: repeat_kv, grouped_query_attention, transformer_block are not" in err
    cannot_learn = write(
        NUMPY.replace("return grad @ weight, dy.T @ h", "return grad, dy.T @ h"), "x.py"
    )
    code, out, err = run("learn", "--run", cannot_learn)
    assert (code, err) == (0, "")
    assert "| Once upon a time there was" in out
    assert "exercises.train: linear_backward is not right yet, needs 19 right functions" in out
    assert narrow(out)


def test_learn_writes_a_notebook(run, tmp_path):
    code, out, err = run("learn", "--out", "mine.ipynb")
    assert (code, err) == (0, "")
    assert out.endswith("\n    jupyter lab mine.ipynb\n")
    assert narrow(out)
    notebook = nbformat.read(tmp_path / "mine.ipynb", as_version=4)
    nbformat.validate(notebook)
    code, _, err = run("learn", "--out", "mine.ipynb")
    assert code == 2
    assert "mine.ipynb: there is such a file already and it stays as it is; its cells say" in err
    code, _, err = run("check", "mine.ipynb")
    assert code == 2
    assert "mine.ipynb: it is a notebook, needs a Python file" in err
    assert "sf.exercises.check(globals())" in err
