"""The package as a stranger gets it: its import, its sdist and its wheel.

Nothing here uses the network, but for the test with a newer xsimd, which asks pip for a wheel that
carries it.
"""

import email
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import simdformer as sf
from building import NOT_INSTALLED, ROOT, UNREACHABLE, assert_one_clear_message, run

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, BUILD_SYSTEM = PYPROJECT["project"], PYPROJECT["build-system"]
DEMO = [
    f"simdformer/data/demo/{name}"
    for name in ("params.json", "consolidated.00.pth", "tokenizer.model")
]
BUILDS = ROOT / "build/install"  # always the same folders, so that ccache knows what lies there

pytestmark = pytest.mark.xdist_group("install")


def pip_wheel(sdist: Path, folder: Path, *settings: str):
    """Builds a wheel of `sdist` into `folder`, offline, with the build tools installed here.

    Sources and objects lie to each other as in a checkout: ccache, if there is one, knows them.
    """
    shutil.rmtree(BUILDS, ignore_errors=True)
    with tarfile.open(sdist) as archive:
        archive.extractall(BUILDS, filter="data")
    [source] = BUILDS.iterdir()
    settings = (*settings, f"build-dir={source}/build/editable")
    options = [word for setting in settings for word in ("-C", setting)]
    return run(
        *(sys.executable, "-m", "pip", "wheel", "--no-index", "--no-deps", "--no-build-isolation"),
        *("--wheel-dir", folder, *options, source),
        cwd=folder,
    )


def clean_environment(folder: Path, wheel: Path) -> Path:
    """The Python of a new environment that holds numpy, ml_dtypes and what pip makes of `wheel`."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin/python"
    site = run(
        python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"
    ).stdout.strip()
    for name in ("numpy", "ml_dtypes"):  # as they are installed here: no network
        distribution = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or [] if file.parts[0] != ".."}:
            (Path(site) / top).symlink_to(Path(str(distribution.locate_file(top))))
    installed = run(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", wheel)
    assert installed.returncode == 0, installed.stdout
    return python


@pytest.fixture(scope="module")
def sdist(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    built = run(
        sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", folder, ROOT
    )
    assert built.returncode == 0, built.stdout
    [path] = folder.glob("*.tar.gz")
    return path


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory) -> Path:
    """Made from the sdist, outside the project's folder, as `pip install simdformer` does, but for
    the instruction sets that tests/package/test_objects.py looks at."""
    folder = tmp_path_factory.mktemp("wheel")
    built = pip_wheel(sdist, folder, "cmake.define.SIMDFORMER_ISAS=best")
    assert built.returncode == 0, built.stdout
    [path] = folder.glob("*.whl")
    return path


def test_the_version_stands_in_one_place():
    assert sf.__version__ == PROJECT["version"]
    assert sf._core.build_info()["version"] == PROJECT["version"]
    assert importlib.metadata.version("simdformer") == PROJECT["version"]


def test_importing_warns_of_nothing():
    done = run(sys.executable, "-W", "error", "-c", "import simdformer")
    assert (done.returncode, done.stdout) == (0, "")


def test_importing_loads_numpy_and_little_else():
    code = """
import sys, numpy, ml_dtypes
before = set(sys.modules)
import simdformer
print(*sorted(set(sys.modules) - before))
"""
    done = run(sys.executable, "-c", code)
    assert done.returncode == 0, done.stdout
    loaded = done.stdout.split()
    ours = [name for name in loaded if name.split(".")[0] == "simdformer"]
    others = {name.split(".")[0] for name in loaded} - set(sys.stdlib_module_names)
    print(f"{len(loaded)} modules more than numpy's, {len(ours)} of them ours")
    assert others <= {"simdformer", "numpy", "threadpoolctl"}  # the last where it is installed
    folders = {path.parent.name for path in (ROOT / "python/simdformer").glob("*/__init__.py")}
    assert {"models", "text", "learn", "cli"} <= folders
    # quantize and its type are among the functions; RopeFrequencies is the reference's
    loaded_folders = folders & {name.split(".")[1] for name in ours if "." in name}
    assert loaded_folders == {"quantization", "reference"}


def test_importing_needs_no_home_and_no_environment(tmp_path):
    command = [sys.executable, "-W", "error", "-c", "import simdformer as sf; print(*sf.isas())"]
    done = subprocess.run(command, env={}, cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (" ".join(sf.isas()) + "\n", "")


# ---- what a release runs ------------------------------------------------------------------------


WORKFLOW = ROOT / ".github/workflows/ci.yml"
in_the_repository = pytest.mark.skipif(not WORKFLOW.exists(), reason="an sdist does not hold it")


def minimum(requirements: list[str], name: str) -> str:
    """The same wherever it is asked for: to build, to run, or both."""
    [found] = {r.removeprefix(f"{name}>=") for r in requirements if r.startswith(f"{name}>=")}
    return found


@in_the_repository
def test_the_workflow_tests_the_oldest_versions_that_the_project_allows():
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load(WORKFLOW.read_text())
    oldest = workflow["jobs"]["oldest"]
    pins = dict(word.split("==") for word in oldest["env"]["OLDEST"].split())
    needed = [*PROJECT["dependencies"], *BUILD_SYSTEM["requires"]]
    assert set(pins) == {"numpy", "ml_dtypes", "pybind11", "scikit-build-core"}
    for name, pin in pins.items():
        assert pin.removesuffix(".*").split(".")[: minimum(needed, name).count(".") + 1] == (
            minimum(needed, name).split(".")
        ), name
    pythons = {v.rpartition(" ")[2] for v in PROJECT["classifiers"] if "Python :: 3." in v}
    assert set(workflow["jobs"]["check"]["strategy"]["matrix"]["python"]) <= pythons
    wheels = workflow["jobs"]["wheels"]["steps"][1]["env"]["CIBW_BUILD"].split()
    assert wheels == [f"cp{v.replace('.', '')}-manylinux*" for v in sorted(pythons)]


@in_the_repository
def test_every_job_of_the_workflow_has_steps_that_exist():
    """Each step runs a command or uses an action of a fixed major version; make's targets exist."""
    yaml = pytest.importorskip("yaml")
    text = WORKFLOW.read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for name, job in yaml.safe_load(text)["jobs"].items():
        assert job["runs-on"]
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step), name
            if "uses" in step:
                assert re.fullmatch(r"[\w-]+/[\w-]+@(v\d+(\.\d+)*|release/v1)", step["uses"])
            for target in re.findall(r"\bmake ([a-z-]+)", step.get("run", "")):
                assert target in targets, f"make {target}"
            for file in re.findall(r"\b(?:tests|notebooks)/[\w./-]+", step.get("run", "")):
                assert (ROOT / file).exists(), file


# ---- sdist and wheel ----------------------------------------------------------------------------


def is_source(path: Path) -> bool:
    return path.is_file() and path.suffix != ".pyc" and not path.name.startswith(".")


@pytest.mark.slow
def test_the_sdist_holds_what_a_build_needs_and_no_rubbish(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    wanted = {
        *("CMakeLists.txt", "LICENSE", "Makefile", "PKG-INFO", "README.md", "pyproject.toml"),
        "cpp/headers.cmake",
        *(str(p.relative_to(ROOT)) for p in (ROOT / "cpp").rglob("*.?pp")),
        *(str(p.relative_to(ROOT)) for p in (ROOT / "python").rglob("*.py*") if p.suffix != ".pyc"),
        *(str(p.relative_to(ROOT)) for p in (ROOT / "tests").rglob("*") if is_source(p)),
        *(f"python/{name}" for name in DEMO),
    }
    assert wanted - names == set()
    assert [n for n in names if n.endswith((".so", ".o", ".pyc")) or "_cache/" in n] == []
    assert {n.split("/")[0] for n in names} <= {
        *wanted,
        *("cpp", "docs", "python", "tests", "notebooks", ".clang-format", ".gitignore"),
        *("CHANGELOG.md", "CONTRIBUTING.md", "biome.json"),
    }


@pytest.mark.slow
def test_the_wheel_holds_the_package_alone(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = email.message_from_bytes(
            archive.read(next(n for n in names if n.endswith("/METADATA")))
        )
        [core] = [n for n in names if n.startswith("simdformer/_core.") and n.endswith(".so")]
        module = archive.read(core)
    assert {n.split("/")[0] for n in names} == {
        "simdformer",
        f"simdformer-{PROJECT['version']}.dist-info",
    }
    assert [n for n in names if n.endswith((".cpp", ".hpp", ".h", ".o", ".pyc", ".cmake"))] == []
    package = ROOT / "python"
    sources = {str(p.relative_to(package)) for p in package.rglob("*.py*") if p.suffix != ".pyc"}
    assert sources | {"simdformer/py.typed", "simdformer/_core.pyi", *DEMO} <= set(names)
    assert {n for n in names if n.startswith("simdformer/data/demo/")} == set(DEMO)
    assert any(n.endswith("/licenses/LICENSE") for n in names)
    assert metadata["License-Expression"] == "BSD-3-Clause"
    assert metadata["Requires-Python"] == ">=3.11"
    assert b".debug_info" not in module, "not stripped"
    assert b".symtab" not in module, "not stripped"


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("objdump"), reason="objdump (binutils) is not installed")
def test_the_module_needs_the_libraries_of_every_linux_alone(wheel, tmp_path):
    """Those that manylinux promises; how new their symbols may be, auditwheel decides."""
    with zipfile.ZipFile(wheel) as archive:
        [core] = [n for n in archive.namelist() if n.endswith(".so")]
        module = archive.extract(core, tmp_path)
    needed = set(re.findall(r"NEEDED\s+(\S+)", run("objdump", "-p", module).stdout))
    assert needed <= {
        *("libstdc++.so.6", "libm.so.6", "libgcc_s.so.1", "libc.so.6", "libpthread.so.0"),
        *("ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"),
    }


@pytest.mark.slow
def test_the_sdist_works_in_a_clean_environment(wheel, tmp_path):
    python = clean_environment(tmp_path / "env", wheel)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    code = "import simdformer as sf; sf.show_config(); print(sf.__file__); print(sf.__version__)"
    done = run(python, "-W", "error", "-c", code, cwd=elsewhere)
    assert done.returncode == 0, done.stdout
    *_, file, version = done.stdout.split("\n")[:-1]
    assert Path(file).is_relative_to(tmp_path / "env")
    assert version == PROJECT["version"]
    for isa in (sf.isas()[0], sf.isas()[-1]):
        assert isa in done.stdout
    code = "import simdformer as sf; print(sf.from_pretrained(sf.demo_path())([1, 2]).shape)"
    done = run(python, "-W", "error", "-c", code, cwd=elsewhere)  # ids need no tokenizer's package
    assert done.stdout.strip() == "(2, 1024)"
    command = run(tmp_path / "env/bin/simdformer", "--help", cwd=elsewhere)
    assert command.returncode == 0, command.stdout
    assert "demo" in command.stdout


SMOKE = """
import numpy as np, simdformer as sf
from simdformer import reference
rng = np.random.default_rng(0)
q, k, v = rng.standard_normal((3, 2, 9, 20))
x, w = rng.standard_normal((7, 33)), rng.standard_normal((5, 33))
for isa in sf.isas():
    with sf.use_isa(isa):
        ours = sf.scaled_dot_product_attention(q, k, v, is_causal=True)
        theirs = reference.scaled_dot_product_attention(q, k, v, is_causal=True)
        np.testing.assert_allclose(ours, theirs, atol=1e-12)
        np.testing.assert_allclose(sf.linear(x, w), reference.linear(x, w), atol=1e-12)
        np.testing.assert_allclose(sf.softmax(x), reference.softmax(x), atol=1e-12)
print("right on", *sf.isas())
"""


@pytest.mark.slow
def test_xsimd_from_a_source_tree(sdist, tmp_path):
    """The wheel of pythran carries the headers of a newer xsimd, and no CMake file."""
    got = run(
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", tmp_path),
        *("--only-binary", ":all:", "pythran"),
    )
    wheels = list(tmp_path.glob("pythran-*.whl"))
    if got.returncode or not wheels:
        pytest.skip(f"pip cannot download pythran: {got.stdout.strip()[-200:]}")
    with zipfile.ZipFile(wheels[0]) as archive:
        archive.extractall(tmp_path / "unpacked", [n for n in archive.namelist() if "/xsimd/" in n])
    headers = tmp_path / "unpacked/pythran"

    settings = {"xsimd_ROOT": headers, "SIMDFORMER_ISAS": "best"}
    options = (f"cmake.define.{name}={value}" for name, value in settings.items())
    built = pip_wheel(sdist, tmp_path, *options, "build.verbose=true")
    assert built.returncode == 0, built.stdout
    [path] = tmp_path.glob("simdformer-*.whl")
    python = clean_environment(tmp_path / "env", path)
    done = run(python, "-W", "error", "-c", SMOKE, cwd=tmp_path)
    assert done.stdout.startswith(f"right on {sf.isas()[0]}")
    assert done.stdout.endswith(f"{sf.isas()[-1]}\n")


@pytest.mark.slow
def test_pip_shows_the_one_clear_message_where_headers_are_missing(sdist, tmp_path):
    done = pip_wheel(sdist, tmp_path, *NOT_INSTALLED, UNREACHABLE)
    assert done.returncode != 0
    assert_one_clear_message(done.stdout)
