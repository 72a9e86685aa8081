"""What the compiler made, and of what: no instruction set leaks into another.

An inline function that two objects both emit is kept once by the linker. Were the AVX-512 object
one of the two, an older machine could run AVX-512 code in the middle of its own kernels. So the
objects are looked at, not only run.
"""

import functools
import os
import platform
import re
import shutil
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

import simdformer._core

ROOT = Path(__file__).resolve().parents[2]
X86_ISAS = ["baseline", "avx2", "avx2_vnni", "avx512", "avx512_vnni", "avx512_bf16"]
ARM_ISAS = ["neon", "neon_dotprod"]
ALL_ISAS = X86_ISAS + ARM_ISAS
ISAS = {"x86_64": X86_ISAS, "aarch64": ARM_ISAS}.get(platform.machine(), [])
X86 = platform.machine() == "x86_64"

pytestmark = [
    pytest.mark.skipif(
        sys.platform != "linux" or not ISAS, reason="reads ELF objects of x86-64 or aarch64"
    ),
    pytest.mark.xdist_group("objects"),
]


def run(*command: object) -> str:
    result = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    assert result.returncode == 0, f"{command}\n{result.stdout[-4000:]}\n{result.stderr[-4000:]}"
    return result.stdout


def objects_in(build: Path) -> dict[str, list[Path]]:
    """The objects of each instruction set, and as "core" those of the baseline code around them."""
    found = {
        isa: list((build / f"CMakeFiles/simdformer_{isa}.dir/cpp/kernels").glob("*.o"))
        for isa in ISAS
    }
    found["core"] = [
        build / f"CMakeFiles/{library}.dir/Unity/unity_0_cxx.cxx.o"
        for library in ("simdformer_core", "_core")
    ]
    return found


def is_current(cmake: str, build: Path) -> bool:
    """Whether `build` is a finished release build, for all instruction sets, of the sources as they
    are now."""
    cache = build / "CMakeCache.txt"
    settings = cache.read_text().splitlines() if cache.exists() else []
    if not {"CMAKE_BUILD_TYPE:STRING=Release", "SIMDFORMER_ISAS:STRING="} <= set(settings):
        return False
    dry_run = subprocess.run(
        [cmake, "--build", build, "--", "-n"], capture_output=True, text=True, check=False
    )
    return "no work to do" in dry_run.stdout


@pytest.fixture(scope="module")
def objects() -> dict[str, list[Path]]:
    """Those of the last build when they are up to date, else of a build in build/objects."""
    for tool in ("nm", "objdump"):
        if not shutil.which(tool):
            pytest.skip(f"{tool} (binutils) is not installed")
    # An environment need not be active to hold them.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    cmake, ninja = shutil.which("cmake", path=path), shutil.which("ninja", path=path)
    if not cmake or not ninja:
        pytest.skip("cmake and ninja are not installed")
    given = [Path(p) for p in [os.environ.get("SIMDFORMER_BUILD_DIR", "")] if p]
    for build in [*given, ROOT / "build/editable"]:
        if is_current(cmake, build):
            return objects_in(build)
    build = ROOT / "build/objects"
    settings = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_MAKE_PROGRAM": ninja,
        "Python_EXECUTABLE": sys.executable,
    }
    definitions = [f"-D{name}={value}" for name, value in settings.items()]
    run(cmake, "-S", ROOT, "-B", build, "-G", "Ninja", *definitions)
    run(cmake, "--build", build, "--parallel", "2")
    return objects_in(build)


@functools.cache
def symbols(path: Path) -> list[tuple[str, str]]:
    """(type letter, mangled name) of every symbol that `path` defines and the linker sees."""
    lines = run("nm", "--extern-only", "--defined-only", "--format=posix", path).splitlines()
    return [(line.split()[1], line.split()[0]) for line in lines if len(line.split()) >= 2]


def weak_functions(paths: list[Path]) -> set[str]:
    return {name for path in paths for letter, name in symbols(path) if letter == "W"}


@functools.cache
def disassembled(path: Path) -> str:
    return run("objdump", "-d", "--no-show-raw-insn", "--no-addresses", path)


def instructions(paths: list[Path]) -> str:
    return "\n".join(map(disassembled, paths))


def using(pattern: str, listing: str) -> list[str]:
    """The first few instructions that match, for the message of a failing test."""
    return [m.group(0).strip() for m in islice(re.finditer(pattern, listing, re.M), 5)]


# objdump prints an instruction as "\tmnemonic operands". From AVX on they begin with v; verr and
# verw are older.
VEX = r"^\s+(?!verr|verw)v[a-z0-9]+\s.*$"
YMM = r"^.*%ymm\d+.*$"
EVEX = r"^.*(%zmm\d+|%[xy]mm(1[6-9]|2\d|3[01])\b|\{%k[1-7]\}|%k[0-7]\b).*$"


def text_of(header: Path) -> str:
    """A header of cpp/isa with those of its neighbours that it reads."""
    text = header.read_text()
    for name in re.findall(r'#include "isa/(\w+\.hpp)"', text):
        text += text_of(header.parent / name)
    return text


def names_in(text: str) -> set[str]:
    """Functions, constants and types that stand at the beginning of a line."""
    return set(re.findall(r"^(?:[\w<>:]+ )+(\w+)(?:\[\])?(?:\(| =| \{\})", text, re.M))


def test_intrinsics_and_questions_to_the_preprocessor_stand_in_the_headers_of_the_isas():
    for path in (ROOT / "cpp/kernels").iterdir():
        for number, line in enumerate(path.read_text().splitlines(), 1):
            found = re.search(
                r"^\s*#(?!include|pragma once)|\b_mm\w*\(|\b__m\d|\bv\w+_[fus]\d+\(", line
            )
            assert not found, f"{path.name}:{number}: {line}"


def test_what_kernels_use_of_one_instruction_set_all_of_them_have():
    folder = ROOT / "cpp/isa"
    alike = names_in((folder / "isa.hpp").read_text())
    names = {isa: names_in(text_of(folder / f"{isa}.hpp")) | alike for isa in ALL_ISAS}
    users = [folder / "isa.hpp", *(ROOT / "cpp/kernels").iterdir()]
    used = {word for path in users for word in re.findall(r"\w+", path.read_text())}
    needed = {isa: found & used for isa, found in names.items()}
    assert {"Vec", "mul_add", "kTileRows", "narrow_bits", "kBf16Pairs"} <= needed["baseline"]
    for isa in ALL_ISAS:
        assert needed[isa] == needed["baseline"], isa
    tested = set(re.findall(r"\w+", (ROOT / "tests/cpp/primitives.cpp").read_text()))
    functions = {name for name in needed["baseline"] if re.match("(?!k[A-Z])[a-z]", name)}
    made_of = {"lanes_as", "fold_lanes", "rounded_words"}  # the others are made of these
    assert functions - made_of <= tested


def test_the_measuring_finds_a_shared_weak_function(tmp_path):
    """Two objects that are compiled as ours must not be: the check has to see it."""
    if not shutil.which("c++"):
        pytest.skip("no C++ compiler")
    source = tmp_path / "leak.cpp"
    source.write_text(
        "#include <vector>\n"
        "float NAME(const std::vector<float>& x) {\n"
        "  std::vector<float> y(x);\n"
        "  y.resize(9);\n"
        "  return y[0];\n"
        "}\n"
    )
    paths = []
    for name, flags in {"plain": [], "wide": ["-mavx512f"] if X86 else []}.items():
        paths.append(tmp_path / f"{name}.o")
        run("c++", "-std=c++17", "-O0", *flags, f"-DNAME={name}", "-c", source, "-o", paths[-1])
    assert weak_functions(paths[:1]) & weak_functions(paths[1:])


@pytest.mark.parametrize("isa", ISAS)
def test_no_two_instruction_sets_share_a_weak_function(objects, isa):
    mine = weak_functions(objects[isa])
    for other in objects:
        if other != isa:
            assert not mine & weak_functions(objects[other]), f"{isa} and {other}"


@pytest.mark.parametrize("isa", ISAS)
def test_a_kernel_object_exports_its_table_and_nothing_else(objects, isa):
    [path] = objects[isa]
    # Templates that the compiler did not inline carry the instruction set's name: nobody
    # else can emit them. What lies outside that namespace is the way in.
    own = re.compile(rf"{len(isa)}{isa}|{len('xsimd_' + isa)}xsimd_{isa}")
    outside = [(letter, name) for letter, name in symbols(path) if not own.search(name)]
    assert outside == [("T", f"_ZN10simdformer{len('table_' + isa)}table_{isa}Ev")]


@pytest.mark.skipif(not X86, reason="x86-64 instruction sets")
class TestInstructions:
    def test_the_wide_objects_are_wide(self, objects):
        """The patterns below find what they look for."""
        for isa in ("avx512", "avx512_vnni", "avx512_bf16"):
            listing = instructions(objects[isa])
            assert using(EVEX, listing)
            assert "%zmm" in listing
        assert using(VEX, instructions(objects["avx2"]))
        assert using(YMM, instructions(objects["avx2"]))

    @pytest.mark.parametrize("name", ["core", "baseline", "avx2", "avx2_vnni"])
    def test_no_avx512_below_avx512(self, objects, name):
        assert using(EVEX, instructions(objects[name])) == []

    @pytest.mark.parametrize("name", ["core", "baseline"])
    def test_the_baseline_is_sse2(self, objects, name):
        listing = instructions(objects[name])
        assert using(VEX, listing) == []
        assert using(YMM, listing) == []

    @pytest.mark.parametrize("isa", ISAS)
    def test_bytes_and_bfloat16_are_multiplied_where_the_name_says_so(self, objects, isa):
        listing = instructions(objects[isa])
        bfloat16 = using(r"^\s+v(dpbf16ps|cvtne2?ps2?2?bf16\w*)\s.*$", listing)
        integers = using(r"^\s+(\{vex\} )?v(pdpbusds?|pdpwssds?)\s.*$", listing)
        assert bool(bfloat16) == (isa == "avx512_bf16")
        assert bool(integers) == (isa in ("avx2_vnni", "avx512_vnni", "avx512_bf16"))


def test_the_module_exports_its_entry_point_and_the_two_functions_of_threadpoolctl():
    if not shutil.which("nm"):
        pytest.skip("nm (binutils) is not installed")
    lines = run("nm", "--dynamic", "--defined-only", "--format=posix", simdformer._core.__file__)
    assert sorted(line.split()[0] for line in lines.splitlines()) == [
        "PyInit__core",
        "simdformer_get_num_threads",
        "simdformer_set_num_threads",
    ]


@pytest.mark.slow  # what runs only the fast ones may have a debug build
@pytest.mark.skipif(not shutil.which("strip"), reason="strip (binutils) is not installed")
def test_the_module_is_as_large_as_the_docs_say(tmp_path):
    if list(simdformer._core.compiled_isas()) != ISAS:
        pytest.skip("this build does not have the kernels of all instruction sets")
    run("strip", "-o", tmp_path / "stripped.so", simdformer._core.__file__)  # as in a wheel
    said = re.search(r"The compiled module is (\d+) MB", (ROOT / "docs/start.md").read_text())
    assert said
    assert (tmp_path / "stripped.so").stat().st_size / 1e6 == pytest.approx(int(said[1]), abs=0.6)
