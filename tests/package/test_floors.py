"""Which module imports which: a package of floors, without a circle."""

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import simdformer

ROOT = Path(simdformer.__file__).parent
CPP = Path(__file__).parents[2] / "cpp"
MODULES = {
    ".".join(["simdformer", *file.relative_to(ROOT).with_suffix("").parts]).removesuffix(
        ".__init__"
    ): file
    for file in sorted(ROOT.rglob("*.py"))
}
EXTENSION = "simdformer._core"
# Of two floors that import each other one would not be above the other.
FLOORS = (
    *("models", "checkpoints", "parallel", "text", "tensors", "transformers", "torch"),
    *("learn", "bench", "cli"),
)


def statements(tree, everywhere):
    """The import statements of a module: those that run while it is imported, or all but those for
    type checkers."""
    waiting = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif everywhere or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting += ast.iter_child_nodes(node)


def imported(module, everywhere=False):
    """The modules of ours that a module imports."""
    for node in statements(ast.parse(MODULES[module].read_text()), everywhere):
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


@pytest.mark.parametrize("below", range(len(FLOORS) - 1))
def test_no_floor_imports_one_above(below):
    """Inside functions neither: an import is not put there to open a circle."""
    floor = f"simdformer.{FLOORS[below]}"
    above = tuple(f"simdformer.{name}" for name in FLOORS[below + 1 :])
    for module in MODULES:
        if module == floor or module.startswith(f"{floor}."):
            up = [name for name in imported(module, everywhere=True) if name.startswith(above)]
            assert not up, f"{module} imports {up}"


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
