"""docs/plugins.md: every example runs."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs/plugins.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.split("(")[0][-40:])
def test_an_example_runs_and_prints_what_stands_beside_it(block, capsys):
    exec(compile(block, "docs/plugins.md", "exec"), {})
    printed = re.findall(r"print\(.*\)  # (.*)", block)
    assert printed
    assert capsys.readouterr().out.splitlines() == printed
