"""Run the notebooks: each `NN_name.py` (the reviewed source, percent format) becomes `NN_name.ipynb` with outputs.

    python notebooks/execute.py [--measure] [NAME ...]

They run on the package's own models, whatever SIMDFORMER_QWEN3 and its like point at, so that the outputs are the
same everywhere; and without progress bars, which only slow machines show. The notebook remembers a digest of the source
it was run from, so that a test can tell outputs that are older than the source. Cells tagged `measured` keep
the output that they have as long as their source is the same; `--measure`, on an idle machine, gives them a new one.
Notebooks that have an exercise twin get it anew: see twins.py.
"""

import hashlib
import os
import sys
from pathlib import Path

import jupytext
import nbformat
import twins
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent
DIGEST = "source_sha256"
WIDGET = "application/vnd.jupyter.widget-view+json"
OWN_WEIGHTS = ("SIMDFORMER_LLAMA3", "SIMDFORMER_MINIMIND", "SIMDFORMER_QWEN3")


def sources() -> list[Path]:
    return sorted(FOLDER.glob("[0-9][0-9]*_*.py"))


def digest(source: Path) -> str:
    return hashlib.sha256(source.read_bytes()).hexdigest()


def run(source: Path) -> nbformat.NotebookNode:
    """Execute one source in a fresh kernel; an error in a cell is a CellExecutionError."""
    notebook = jupytext.read(source)
    environment = {name: value for name, value in os.environ.items() if name not in OWN_WEIGHTS}
    environment |= {"TQDM_DISABLE": "1", "PYTHONWARNINGS": "ignore:IProgress not found"}
    NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}}
    ).execute(env=environment)
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number:03d}"  # stable, so that a new run changes only what changed
        cell.metadata.pop("execution", None)  # time stamps
        if cell.cell_type == "code":
            cell["outputs"] = kept(cell.outputs)
    language = {"name": "python"}  # without the version of the machine that ran it
    notebook.metadata = {
        "kernelspec": notebook.metadata["kernelspec"],
        "language_info": language,
        DIGEST: digest(source),
    }
    return notebook


def kept(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """All but progress bars."""
    return [output for output in outputs if WIDGET not in output.get("data", {})]


def keep_what_was_measured(notebook: nbformat.NotebookNode, before: nbformat.NotebookNode) -> None:
    """Measured cells whose source is the same have the output that they had."""
    measured = {
        cell.source: cell.outputs
        for cell in before.cells
        if "measured" in cell.metadata.get("tags", []) and cell.outputs
    }
    for cell in notebook.cells:
        if cell.source in measured:
            cell["outputs"] = measured[cell.source]


def main(arguments: list[str]) -> None:
    measure = "--measure" in arguments
    names = [name for name in arguments if name != "--measure"]
    for source in sources():
        if names and source.stem not in names:
            continue
        print(f"running {source.name}", flush=True)
        if measure and os.getloadavg()[0] > 0.5:
            print("  others compute on this machine: what is measured now is worth nothing")
        notebook = run(source)
        if not measure and (file := source.with_suffix(".ipynb")).exists():
            keep_what_was_measured(notebook, nbformat.read(file, as_version=4))
        nbformat.validate(notebook)
        nbformat.write(notebook, source.with_suffix(".ipynb"))
        if twins.has_twin(source):
            twins.write(source)


if __name__ == "__main__":
    main(sys.argv[1:])
