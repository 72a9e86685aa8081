"""The notebooks: source and .ipynb are the same cells, the outputs belong to that source, and every
cell runs."""

import ast
import contextlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"

jupytext = pytest.importorskip("jupytext")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")

sys.path.append(str(FOLDER))  # execute.py takes twins.py from beside it
spec = importlib.util.spec_from_file_location("execute", FOLDER / "execute.py")
assert spec is not None
assert spec.loader is not None
execute = importlib.util.module_from_spec(spec)
spec.loader.exec_module(execute)

SOURCES = execute.sources()
SHORT = {"SIMDFORMER_STEPS": "20"}  # of the notebook that trains
each_notebook = pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)


def kept(source):
    return nbformat.read(source.with_suffix(".ipynb"), as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def is_measured(cell):
    return "measured" in cell.metadata.get("tags", [])


def texts(output):
    """What an output says to a reader: all of it but pictures."""
    yield output.get("text", "")
    for kind, text in output.get("data", {}).items():
        if not kind.startswith("image/"):
            yield re.sub(r"base64,[\w+/=]+", "", text)  # a picture in HTML is any letters


def test_there_are_notebooks_and_each_has_both_files() -> None:
    assert SOURCES
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == {source.stem for source in SOURCES}


@each_notebook
def test_cells_are_paired(source: Path) -> None:
    ours = [(cell.cell_type, cell.source) for cell in jupytext.read(source).cells]
    notebook = kept(source)
    nbformat.validate(notebook)
    assert ours == [(cell.cell_type, cell.source) for cell in notebook.cells]


@each_notebook
def test_outputs_are_not_older_than_the_source(source: Path) -> None:
    notebook = kept(source)
    assert notebook.metadata.get(execute.DIGEST) == execute.digest(source), "run `make notebooks`"
    counts = [cell.execution_count for cell in code_cells(notebook)]
    assert counts == list(range(1, len(counts) + 1)), "run `make notebooks`"


@each_notebook
def test_outputs_hold_no_errors_warnings_paths_or_timings(source: Path) -> None:
    for cell in code_cells(kept(source)):
        for output in cell.outputs:
            assert output.output_type != "error"
            assert output.get("name") != "stderr", output.text
            for text in texts(output):
                assert not re.search(r"/(home|root|work|tmp|usr)/", text), text
                times = re.search(r"\d\s*(ms|µs|us|seconds)\b", text)
                assert not times or is_measured(cell), text


@each_notebook
def test_pictures_are_png_that_a_code_host_shows(source: Path) -> None:
    pictures = [
        kind
        for cell in code_cells(kept(source))
        for output in cell.outputs
        for kind in output.get("data", {})
        if kind.startswith(("image/", "application/"))
    ]
    assert pictures
    assert set(pictures) == {"image/png"}
    assert source.with_suffix(".ipynb").stat().st_size < 2e6


@pytest.mark.parametrize("number", ["01", "02", "03", "04"])
def test_a_walkthrough_checks_breaks_and_times_what_it_computes(number: str) -> None:
    """The parts of one (02, 02b) taken together, but that each breaks something."""
    parts = [jupytext.read(source) for source in SOURCES if source.stem.startswith(number)]
    cells = [cell for notebook in parts for cell in code_cells(notebook)]
    assert sum(".raise_if_wrong()" in cell.source for cell in cells) >= 5
    for notebook in parts:
        assert any("break it yourself" in cell.source.lower() for cell in notebook.cells)
    assert any(is_measured(cell) and "PyTorch" in cell.source for cell in cells)


@each_notebook
def test_the_cells_of_a_reader_hold_no_assert(source: Path) -> None:
    """What they claim is in claims/, beside this file."""
    for cell in code_cells(jupytext.read(source)):
        assert not re.search(r"^\s*(assert\b|np\.testing\b)", cell.source, re.M), cell.source


@pytest.mark.parametrize(
    "source", [source for source in SOURCES if source.stem < "06"], ids=lambda source: source.stem
)
def test_a_picture_is_one_call(source: Path) -> None:
    for cell in code_cells(jupytext.read(source)):
        drawn = re.findall(r"\bplt\.(?!show\(\))\w+|\bax\.\w+", cell.source)
        assert drawn == [], cell.source


@each_notebook
def test_the_measured_cells_show_what_they_measured(source: Path) -> None:
    for cell in filter(is_measured, code_cells(kept(source))):
        assert cell.outputs, cell.source


def test_a_measured_cell_keeps_its_output_while_its_source_is_the_same() -> None:
    def notebook(source: str, shown: str) -> nbformat.NotebookNode:
        output = nbformat.v4.new_output("stream", text=shown)
        tags = {"tags": ["measured"]}
        cell = nbformat.v4.new_code_cell(source, outputs=[output], metadata=tags)
        return nbformat.v4.new_notebook(cells=[cell])

    before = notebook("measure()", "3 ms")
    same, other = notebook("measure()", "5 ms"), notebook("measure(2)", "5 ms")
    for again in (same, other):
        execute.keep_what_was_measured(again, before)
    assert [one.cells[0].outputs[0].text for one in (same, other)] == ["3 ms", "5 ms"]


def test_execute_leaves_out_weights_of_the_reader(monkeypatch, tmp_path) -> None:
    source = tmp_path / "00_probe.py"
    header, *_ = SOURCES[0].read_text().partition("# %%")
    source.write_text(header + '# %%\nimport os\nprint("SIMDFORMER_QWEN3" in os.environ)\n')
    monkeypatch.setenv("SIMDFORMER_QWEN3", "nowhere")
    monkeypatch.setattr(execute, "FOLDER", tmp_path)
    (cell,) = execute.run(source).cells
    assert cell.outputs[0].text == "False\n"


def installed_with(extra: str) -> set[str]:
    """The distributions that an extra of this package brings, and all that these need."""
    extras = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text())["project"]
    todo = [*extras["dependencies"], *extras["optional-dependencies"][extra]]
    found: set[str] = set()
    while todo:
        name, wanted = re.match(r"([\w.-]+)(?:\[([\w,]+)\])?", todo.pop()).groups()
        if name == "simdformer":
            todo += [
                need for one in wanted.split(",") for need in extras["optional-dependencies"][one]
            ]
        elif (name := re.sub(r"[-_.]+", "-", name).lower()) not in found:
            found.add(name)
            with contextlib.suppress(PackageNotFoundError):  # JupyterLab itself need not be here
                todo += [need for need in requires(name) or () if "extra ==" not in need]
    return found


@pytest.mark.sampled(2)
@each_notebook
def test_make_lab_installs_what_a_notebook_imports(source: Path) -> None:
    tree = ast.parse(source.read_text())
    imported = {
        name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names
    }
    imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    packages = (
        {name.partition(".")[0] for name in imported} - sys.stdlib_module_names - {"simdformer"}
    )
    homes = packages_distributions()
    assert {re.sub(r"[-_.]+", "-", homes[name][0]).lower() for name in packages} <= installed_with(
        "lab"
    )


def failures(*sources: Path) -> dict[str, str | None]:
    """The first cell that fails in each notebook; one process imports PyTorch once for all."""
    ran = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "run_cells.py"), *map(str, sources)],
        env={k: v for k, v in os.environ.items() if k not in execute.OWN_WEIGHTS}
        | {"TQDM_DISABLE": "1", "OMP_NUM_THREADS": "1", **SHORT},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    answers = map(json.loads, ran.stdout.splitlines())
    return {answer["name"]: answer["failed"] for answer in answers}


@pytest.mark.parametrize(
    "sources",
    [SOURCES[:1], pytest.param(SOURCES[1:], marks=pytest.mark.slow)],
    ids=["the first", "the others"],
)
def test_every_cell_runs_but_those_that_take_times(sources: list[Path]) -> None:
    """In one process for all: what they import takes longer than most of them do."""
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    assert failures(*sources) == {source.stem: None for source in sources}


@pytest.mark.slow
def test_a_cell_that_fails_is_named(tmp_path) -> None:
    source = tmp_path / "00_probe.py"
    source.write_text('# %%\nx = 1\n\n# %% tags=["measured"]\n1 / 0\n\n# %%\nx + y\n')
    assert failures(source)["00_probe"].startswith("cell 3: NameError")


@pytest.mark.parametrize(
    ("line", "failed"),
    [
        ("x = 1", "cell 1 claims what is not so: assert shown == '3': AssertionError()"),
        ("x = 2", "no cell has the line of a claim: x = 2"),
    ],
)
def test_a_claim_that_does_not_hold_is_named(line, failed, tmp_path, monkeypatch) -> None:
    source = tmp_path / "00_probe.py"
    source.write_text("# %%\nx = 1\nprint(2 * x, end='')\n")
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / source.name).write_text(
        f"import math\n\n# %% {line}\nassert math.sqrt(x) == 1\nassert shown == '3'\n"
    )
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    run_cells = importlib.import_module("run_cells")
    monkeypatch.setattr(run_cells, "CLAIMS", tmp_path / "claims")
    assert run_cells.failure(run_cells.InteractiveShell.instance(), source) == failed


def test_every_claim_belongs_to_a_notebook() -> None:
    names = {path.stem for path in (Path(__file__).parent / "claims").glob("*.py")}
    assert names <= {source.stem for source in SOURCES}


@pytest.mark.slow
@each_notebook
def test_every_cell_runs_in_a_kernel(source: Path, monkeypatch) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    for name, value in SHORT.items():
        monkeypatch.setenv(name, value)
    notebook = execute.run(source)  # an error in a cell is a CellExecutionError
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert outputs
    assert [output for output in outputs if output.output_type == "error"] == []
