"""Runs the cells of notebooks in this process, without a kernel and without those that take times,
and checks what they claim.

    python run_cells.py SOURCE ...

A line of JSON says for each notebook the cell that failed, and why; null where all ran. Importing
PyTorch and starting a kernel takes longer than most notebooks do: here it is done once for all.

A notebook is for its reader, and holds no assert. What its cells say is checked here: beside this
file, claims/NAME.py has for a cell, named by one of its lines behind `# %%`, code that runs in the
notebook's namespace as soon as the cell has run. `shown` is what the cell printed. What stands in
front of the first `# %%` is imported for all of them.
"""

import ast
import json
import os
import re
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import jupytext
import matplotlib as mpl
from IPython.core.interactiveshell import InteractiveShell
from matplotlib import pyplot

RICH = ("text/plain", "text/html", "text/markdown", "image/png")
CLAIMS = Path(__file__).parent / "claims"
NOT_RUN = "measured"  # the tag of cells that take times


def failure(shell: InteractiveShell, source: Path) -> str | None:
    """The first cell of a notebook that fails, or whose claim does; they share one namespace, and
    nothing before it."""
    shell.reset()
    imports, claims = claims_of(source)
    exec(imports, tools := {})
    cells = [cell for cell in jupytext.read(source).cells if cell.cell_type == "code"]
    for number, cell in enumerate(cells, start=1):
        if NOT_RUN in cell.metadata.get("tags", []):
            continue
        with redirect_stdout(StringIO()) as printed:
            result = shell.run_cell(cell.source)
        if result.error_before_exec or result.error_in_exec:
            return f"cell {number}: {result.error_before_exec or result.error_in_exec!r}"
        lines = set(cell.source.splitlines())
        for line in [line for line in claims if line in lines]:
            names = {**shell.user_ns, **tools, "shown": printed.getvalue()}
            for claim in statements(claims.pop(line)):
                try:
                    exec(claim, names)
                except Exception as error:
                    return f"cell {number} claims what is not so: {claim}: {error!r}"
        pyplot.close("all")
    return f"no cell has the line of a claim: {', '.join(claims)}" if claims else None


def claims_of(source: Path) -> tuple[str, dict[str, str]]:
    """Imports, and the claims by the line of the cell that they belong to."""
    file = CLAIMS / source.name
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    imports, *parts = re.split(r"^# %% (.*)\n", text, flags=re.M)
    return imports, dict(zip(parts[::2], parts[1::2], strict=True))


def statements(code: str) -> list[str]:
    """Top-level statements one by one, so that the one that fails can be shown."""
    return [ast.get_source_segment(code, node) or "" for node in ast.parse(code).body]


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
