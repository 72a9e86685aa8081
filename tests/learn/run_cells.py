"""Runs the cells of notebooks in this process, without a kernel and without those that take times.

    python run_cells.py SOURCE ...

A line of JSON says for each notebook the cell that failed, and why; null where all ran. Importing
PyTorch and starting a kernel takes longer than most notebooks do: here it is done once for all.
"""

import json
import os
import sys
from pathlib import Path

import jupytext
import matplotlib as mpl
from IPython.core.interactiveshell import InteractiveShell
from matplotlib import pyplot

RICH = ("text/plain", "text/html", "text/markdown", "image/png")


def failure(shell: InteractiveShell, source: Path) -> str | None:
    """The first cell of a notebook that fails; they share one namespace, and nothing before it."""
    shell.reset()
    cells = [cell for cell in jupytext.read(source).cells if cell.cell_type == "code"]
    for number, cell in enumerate(cells, start=1):
        if "timing" in cell.metadata.get("tags", []):
            continue
        result = shell.run_cell(cell.source)
        if result.error_before_exec or result.error_in_exec:
            return f"cell {number}: {result.error_before_exec or result.error_in_exec!r}"
        pyplot.close("all")
    return None


def main(sources: list[str]) -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # what cells print is not for the test
    mpl.use("agg")
    shell = InteractiveShell.instance()
    shell.display_formatter.active_types = list(RICH)
    for source in map(Path, sources):
        os.chdir(source.parent)
        print(json.dumps({"name": source.stem, "failed": failure(shell, source)}), file=answers)


if __name__ == "__main__":
    main(sys.argv[1:])
