"""Which module imports which: a package of floors, without a circle."""

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import simdformer

ROOT = Path(simdformer.__file__).parent
CPP, DOCS = (Path(__file__).parents[2] / name for name in ("cpp", "docs"))
MODULES = {
    ".".join(["simdformer", *file.relative_to(ROOT).with_suffix("").parts]).removesuffix(
        ".__init__"
    ): file
    for file in sorted(ROOT.rglob("*.py"))
}
EXTENSION = "simdformer._core"
# From the ground up, as in docs/architecture.md: every folder and every module of the package.
FLOORS = (
    ("types", "mpiexec"),
    ("arguments", "starting"),
    ("quantization",),
    ("reference",),
    ("rope_scaling", "runtime", "attention"),
    ("functional",),
    ("layer_checks", "loss", "optim"),
    ("experts", "backward"),
    ("nn",),
    ("models",),
    ("data",),
    ("checkpoints", "parallel"),
    ("text",),
    ("training",),
    ("tensors",),
    ("transformers",),
    ("torch",),
    ("simdformer",),
    ("interpret",),
    ("learn",),
    ("bench",),
    ("demo",),
    ("cli",),
    ("__main__",),
)
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
FACE = "simdformer"  # names what it loads on request, of every floor, for type checkers


def room(module):
    """The folder or module of the package in which a module lies."""
    return module.split(".")[min(1, module.count("."))]


def statements(module, everywhere):
    """The import statements of a module: those that run while it is imported and those for type
    checkers, or all."""
    waiting = list(ast.parse(MODULES[module].read_text()).body)
    while waiting:
        node = waiting.pop()
        for_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if for_types and module == FACE:
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif everywhere or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting += ast.iter_child_nodes(node)


def imported(module, everywhere=False):
    """The modules of ours that a module imports."""
    for node in statements(module, everywhere):
        assert not getattr(node, "level", 0), f"{module}: a relative import"
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in (*MODULES, EXTENSION) else node.module for name in full]
        yield from (name for name in names if name in MODULES and name != module)


def circle(graph):
    """The modules of one circle; nothing where there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_a_circle_is_found():
    assert set(circle({"a": ["b"], "b": ["c"], "c": ["a"]})) == {"a", "b", "c"}
    assert circle({"a": ["b"], "b": ["c"]}) == []


def test_no_module_imports_itself_round_a_corner():
    assert circle({module: set(imported(module)) for module in MODULES}) == []


def test_every_room_has_a_floor():
    assert {room(module) for module in MODULES} == set(FLOOR)


@pytest.mark.parametrize("own", FLOOR)
def test_a_room_imports_only_what_lies_below_it(own):
    """Inside functions too: an import is not put there to open a circle."""
    for module in (name for name in MODULES if room(name) == own):
        rooms = {room(name) for name in imported(module, everywhere=True)} - {own}
        assert all(FLOOR[other] < FLOOR[own] for other in rooms), f"{module} imports {rooms}"


def test_the_list_of_floors_names_every_room():
    table = (DOCS / "architecture.md").read_text().partition("## Floors")[2].partition("\n## ")[0]
    rooms = set(FLOOR) - {FACE, "__main__"}
    assert {name for name in rooms if not re.search(rf"`[\w/]*\b{name}(/|\.py)`", table)} == set()


def test_no_file_knows_the_name_of_a_format_but_its_own():
    """What differs between formats is asked of the Format object."""
    names = {"meta", "huggingface", "minimind", "llama2.c"}
    for module, file in MODULES.items():
        compared = [
            constant.value
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.Compare)
            for constant in ast.walk(node)
            if isinstance(constant, ast.Constant) and constant.value in names
        ]
        assert not compared, f"{module} compares {compared}"


# What each floor of cpp/ may include besides its own files.
CPP_FLOORS = {
    "base": set(),
    "isa": {"base"},
    "kernels": {"base", "isa"},
    "core": {"base"},
    "bindings": {"base", "core"},
}


@pytest.mark.parametrize("floor", CPP_FLOORS)
def test_no_floor_of_cpp_includes_one_above(floor):
    """`table.cpp` alone is chosen by the build and not by an include."""
    for file in sorted((CPP / floor).iterdir()):
        included = re.findall(r'#include "(\w+)/', file.read_text())
        assert set(included) <= {floor, *CPP_FLOORS[floor]}, file


def test_every_folder_of_cpp_is_a_floor():
    assert {folder.name for folder in CPP.iterdir() if folder.is_dir()} == set(CPP_FLOORS)
