"""The notebooks: source and .ipynb are the same cells, the outputs belong to that source, and every
cell runs."""

import importlib.util
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"

jupytext = pytest.importorskip("jupytext")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")

spec = importlib.util.spec_from_file_location("execute", FOLDER / "execute.py")
assert spec is not None
assert spec.loader is not None
execute = importlib.util.module_from_spec(spec)
spec.loader.exec_module(execute)

SOURCES = execute.sources()
each_notebook = pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)


def test_there_are_notebooks() -> None:
    assert SOURCES
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == {source.stem for source in SOURCES}


@each_notebook
def test_cells_are_paired(source: Path) -> None:
    ours = [(cell.cell_type, cell.source) for cell in jupytext.read(source).cells]
    kept = nbformat.read(source.with_suffix(".ipynb"), as_version=4)
    nbformat.validate(kept)
    assert ours == [(cell.cell_type, cell.source) for cell in kept.cells]


@each_notebook
def test_outputs_are_not_older_than_the_source(source: Path) -> None:
    kept = nbformat.read(source.with_suffix(".ipynb"), as_version=4)
    assert kept.metadata.get(execute.DIGEST) == execute.digest(source), "run `make notebooks`"
    code = [cell for cell in kept.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), (
        "run `make notebooks`"
    )


@each_notebook
def test_outputs_hold_no_paths_and_no_timings(source: Path) -> None:
    kept = nbformat.read(source.with_suffix(".ipynb"), as_version=4)
    for cell in kept.cells:
        if cell.cell_type != "code":
            continue
        if "timing" in cell.metadata.get("tags", []):
            assert cell.outputs == []
        for output in cell.outputs:
            assert output.output_type != "error"
            text = output.get("text", "") + str(output.get("data", {}).get("text/plain", ""))
            assert not re.search(r"/(home|root|work|tmp|usr)/", text), text
            assert not re.search(r"\d\s*(ms|µs|us|seconds)\b", text), text


@pytest.mark.slow
@each_notebook
def test_every_cell_runs(source: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    notebook = execute.run(source)
    errors = [
        output
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if output.output_type == "error"
    ]
    assert errors == []
