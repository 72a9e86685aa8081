"""Where CMake finds the headers of xsimd, xtl and xtensor, and what it says when it does not.

Nothing is built here, and nothing comes from a network: downloads are of files.
"""

import hashlib
import json
import os
import re
import shlex
import shutil
import sys
import tarfile
from pathlib import Path

import pytest

from building import NOT_INSTALLED, ROOT, UNREACHABLE, assert_one_clear_message, run
from simdformer import isas


def configure(folder: Path, *definitions: str, source: Path = ROOT):
    """Runs CMake's configuration of a project, by default ours, in a new build folder."""
    cmake = shutil.which("cmake", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if not cmake:
        pytest.skip("cmake is not installed")
    return run(
        *(cmake, "-S", source, "-B", folder / "build", f"-DPython_EXECUTABLE={sys.executable}"),
        *(f"-D{definition.removeprefix('cmake.define.')}" for definition in definitions),
    )


def fake_headers(folder: Path, name: str, version: str) -> Path:
    """A folder that holds nothing of library `name` but the file that tells its version."""
    config = folder / {"xsimd": "xsimd/config/xsimd_config.hpp"}.get(
        name, f"{name}/{name}_config.hpp"
    )
    config.parent.mkdir(parents=True)
    parts = zip(("MAJOR", "MINOR", "PATCH"), version.split("."), strict=True)
    config.write_text("".join(f"#define {name.upper()}_VERSION_{p} {n}\n" for p, n in parts))
    return folder


@pytest.fixture
def find_headers(tmp_path):
    """find_headers(definitions, sha256) runs the three ways alone, for xsimd, in a project that has
    no language: what is said, in one line."""
    project = tmp_path / "project"
    project.mkdir()

    def run_cmake(*definitions, sha256="0" * 64):
        (project / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.25)\n"
            "project(three_ways LANGUAGES NONE)\n"
            f"include({ROOT}/cpp/headers.cmake)\n"
            f"find_headers(xsimd 8.1 15 13.2.0 {sha256})\n"
            "require_headers()\n"
        )
        done = configure(tmp_path, "SIMDFORMER_DOWNLOAD=ON", *definitions, source=project)
        return done.returncode, " ".join(done.stdout.split())

    return run_cmake


@pytest.mark.parametrize("spelling", ["xsimd_ROOT", "SIMDFORMER_XSIMD_ROOT"])
@pytest.mark.parametrize("layout", ["include tree", "prefix", "folder of headers"])
def test_a_given_folder_comes_first(find_headers, tmp_path, spelling, layout):
    tree = fake_headers(tmp_path / "here/include", "xsimd", "12.3.4")
    given = {"include tree": tree, "prefix": tree.parent, "folder of headers": tree / "xsimd"}
    status, said = find_headers(f"{spelling}={given[layout]}")
    assert status == 0
    assert f"-- xsimd 12.3.4: {tree} " in said


def test_a_package_of_any_major_in_range_is_taken(find_headers, tmp_path):
    """Asked for a version, the version file that xsimd installs would refuse all other majors."""
    for version in ("8.1.0", "14.2.0"):
        prefix = tmp_path / version
        tree = fake_headers(prefix / "include", "xsimd", version)
        package = prefix / "lib/cmake/xsimd"
        package.mkdir(parents=True)
        (package / "xsimdConfig.cmake").write_text(f"set(xsimd_INCLUDE_DIRS {tree})\n")
        (package / "xsimdConfigVersion.cmake").write_text("set(PACKAGE_VERSION_COMPATIBLE FALSE)\n")
        status, said = find_headers(f"CMAKE_PREFIX_PATH={prefix}", "xsimd_DIR=")
        assert status == 0
        assert f"-- xsimd {version}: {tree} " in said


def test_what_is_not_installed_is_downloaded_once(find_headers, tmp_path):
    fake_headers(tmp_path / "xsimd-13.2.0/include", "xsimd", "13.2.0")
    archive = tmp_path / "mirror/xsimd/archive/refs/tags/13.2.0.tar.gz"
    archive.parent.mkdir(parents=True)
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "xsimd-13.2.0", "xsimd-13.2.0")
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    mirror = f"SIMDFORMER_MIRROR=file://{tmp_path}/mirror"
    found = f"-- xsimd 13.2.0: {tmp_path}/build/headers/xsimd-13.2.0/include "

    refused, said = find_headers(NOT_INSTALLED[0], mirror, "SIMDFORMER_DOWNLOAD=OFF", sha256=sha256)
    assert refused
    assert "not installed; downloads are switched off" in said
    for _ in range(2):
        status, said = find_headers(NOT_INSTALLED[0], mirror, sha256=sha256)
        assert status == 0
        assert found in said
        shutil.rmtree(tmp_path / "mirror", ignore_errors=True)
    assert "downloading" not in said


def test_a_download_that_is_not_the_pinned_file_is_refused(tmp_path):
    archive = tmp_path / "mirror/xsimd/archive/refs/tags/13.2.0.tar.gz"
    archive.parent.mkdir(parents=True)
    archive.write_bytes(b"something else")
    done = configure(tmp_path, *NOT_INSTALLED, f"SIMDFORMER_MIRROR=file://{tmp_path}/mirror")
    assert done.returncode != 0
    assert "is not the file it should be" in done.stdout
    assert hashlib.sha256(b"something else").hexdigest() in done.stdout
    assert not (tmp_path / "build/headers/xsimd-13.2.0").exists()


def test_without_the_headers_there_is_one_clear_message(tmp_path):
    done = configure(tmp_path, *NOT_INSTALLED, UNREACHABLE)
    assert done.returncode != 0
    assert_one_clear_message(done.stdout)


@pytest.mark.parametrize(
    ("name", "version"), [("xsimd", "7.6.0"), ("xsimd", "15.0.0"), ("xtensor", "0.23.10")]
)
def test_a_version_out_of_range_is_named(tmp_path, name, version):
    tree = fake_headers(tmp_path / "here", name, version)
    done = configure(tmp_path, f"{name}_ROOT={tree}")
    assert done.returncode != 0
    assert f"version {version} in {tree} is out of that range" in " ".join(done.stdout.split())


def test_a_given_folder_without_the_headers_is_an_error_not_a_hint(tmp_path):
    done = configure(tmp_path, f"xsimd_ROOT={tmp_path}")
    assert done.returncode != 0
    assert f"no xsimd headers under xsimd_ROOT={tmp_path}" in " ".join(done.stdout.split())


def test_fast_math_is_refused(tmp_path):
    done = configure(tmp_path, "CMAKE_CXX_FLAGS=-O2 -ffast-math")
    assert done.returncode != 0
    assert "cannot be built with fast-math" in " ".join(done.stdout.split())


def test_every_build_has_kernels_for_every_machine(tmp_path):
    """Else there would be machines without any, and a null pointer at import."""
    done = configure(tmp_path, "SIMDFORMER_ISAS=avx512_bf16")
    assert done.returncode != 0
    assert re.search(
        r"SIMDFORMER_ISAS is avx512_bf16, needs \w+ too", " ".join(done.stdout.split())
    )


def test_a_build_for_this_machine_has_its_best_kernels(tmp_path):
    done = configure(tmp_path, "SIMDFORMER_ISAS=best", "SIMDFORMER_MODULE=OFF")
    assert done.returncode == 0
    [kernels] = re.findall(r"-- kernels for: (.*)", done.stdout)
    built = kernels.split(";")
    assert (built[0], built[-1]) == (isas()[0], isas()[-1])
    assert len(built) <= 3  # the best one may have most of its kernels from another one


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("clang++"), reason="clang is not installed")
def test_clang_reads_every_source_without_a_warning(tmp_path):
    """GCC takes some things that clang does not; `make clang` runs what is only read here."""
    done = configure(
        *(tmp_path, "CMAKE_CXX_COMPILER=clang++", "CMAKE_EXPORT_COMPILE_COMMANDS=ON"),
        *("SIMDFORMER_WERROR=ON", "SIMDFORMER_UNITY=OFF"),
        "SIMDFORMER_ISAS=baseline;avx2;avx2_vnni;avx512_bf16;neon",
    )
    assert done.returncode == 0, done.stdout
    units = json.loads((tmp_path / "build/compile_commands.json").read_text())
    read = {Path(unit["file"]).relative_to(ROOT) for unit in units}
    assert read == {path.relative_to(ROOT) for path in (ROOT / "cpp").rglob("*.cpp")}
    for unit in units:
        command = shlex.split(unit["command"])
        done = run(*command, "-fsyntax-only", cwd=Path(unit["directory"]))
        assert done.returncode == 0, f"{unit['command']}\n{done.stdout[-4000:]}"
