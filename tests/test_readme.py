"""What the README says works when typed."""

import contextlib
import importlib.util
import io
import re
from pathlib import Path
from typing import Any

import numpy as np

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


def test_the_model_lines_run() -> None:
    (block,) = [block for block in BLOCKS if "demo_path" in block]
    names: dict[str, Any] = {"sf": sf}
    run(block, names)
    length = len(names["ids"])
    assert names["pattern"].shape == (8, length, length)
    assert names["without"].shape == names["logits"].shape == (length, 1024)
    assert not np.array_equal(names["without"], names["logits"])


def test_the_commands_exist() -> None:
    commands = set(re.findall(r"^\$ simdformer (\w+)", README, re.M))
    assert {"demo", "run", "chat", "trace", "info"} <= commands
    for command in commands:
        assert importlib.util.find_spec(f"simdformer.cli.{command}"), command


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
