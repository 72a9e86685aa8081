"""What the README says works when typed."""

import contextlib
import io
import re
from pathlib import Path

import pytest

import simdformer as sf

README = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.S)


def run(code: str, names: dict[str, object]) -> list[str]:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), names)
    return printed.getvalue().splitlines()


def test_the_twenty_lines_print_what_their_comments_say() -> None:
    promised = re.findall(r"^print\(.*\)\s+# (.*)$", BLOCKS[0], re.M)
    assert promised
    assert run(BLOCKS[0], {}) == promised


def test_the_model_lines_run(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shared / "data" / "stories260K")
    names: dict[str, object] = {"sf": sf}
    run(BLOCKS[1], names)
    (promised,) = re.findall(r'trace\["layers.0.attn.pattern"\]: (\(.*\))', BLOCKS[1])
    trace = names["trace"]
    assert isinstance(trace, dict)
    assert str(trace["layers.0.attn.pattern"].shape) == promised


def test_the_table_names_every_operation_and_layer() -> None:
    table = README.split("## The functions")[1].split("## Models")[0]
    missing = [
        name
        for name in [*sf.functional.__all__, *sf.nn.__all__]
        if f"`{name}" not in table and f".{name}`" not in table
    ]
    assert set(missing) <= {"PackedWeight", "RopeFrequencies"}


def test_the_tree_names_folders_that_exist() -> None:
    root = Path(__file__).resolve().parents[1]
    tree = README.split("## The tree")[1]
    for folder in re.findall(r"^((?:cpp|python|tests|notebooks)/[\w/]*)", tree, re.M):
        assert (root / folder).is_dir(), folder
