"""The exercise twins of the notebooks: `NN_name.py` becomes `exercises/NN_name.ipynb`, in which the reader writes what
the notebook says that "you write".

What that is follows from the checks. A cell that says `sf.check(operation, mine, ...).raise_if_wrong()` checks `mine`,
and so do `sf.check_trace(mine, ...)`, `sf.check_gradients` and `sf.check_step` in its place, and `sf.testing.assert_close(mine, ...)`: the function, class or
variable that made it is left out of the twin, with its first line kept. The code stands folded below the cell, beside
the hints where `simdformer learn` has an exercise of that name. Cells tagged `given` stay as they are.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import jupytext
import nbformat

from simdformer.learn.exercises import HINTS
from simdformer.learn.exercises.notebook import folded_answer, folded_hints

WITH_TWINS = ("01", "02", "02b", "03", "04", "08")
FOLDER = "exercises"
GIVEN = ("random", "weight")  # what reads and draws numbers
UNWRITTEN = "raise NotImplementedError"
NOTE = """\
# Notebook {number} as an exercise

The code that you write in [notebook {number}](../{name}.ipynb) is left out here. Replace each `...` and each
`raise NotImplementedError` by your own code, and run the cell: `sf.check` says whether it is right. Below the cell one
way to write it opens on a click. (An error that speaks of an `ellipsis` means that a `...` is still there.)"""

Definition = ast.FunctionDef | ast.ClassDef | ast.Assign


def has_twin(source: Path) -> bool:
    return source.stem.partition("_")[0] in WITH_TWINS


def twin(source: Path) -> nbformat.NotebookNode:
    """The notebook without what the reader writes."""
    notebook = jupytext.read(source)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    left_out = to_write([ast.parse(readers_part(cell)) for cell in code])
    number = source.stem.partition("_")[0]
    first = notebook.cells[0]
    first.source = "\n".join(
        line for line in first.source.splitlines() if f"({FOLDER}/{source.stem}.ipynb)" not in line
    )
    cells = [nbformat.v4.new_markdown_cell(NOTE.format(number=number, name=source.stem))]
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = from_a_folder_below(cell.source)
        cells.append(cell)
        if cell.cell_type == "code" and (nodes := left_out.pop(0)):
            answer = "\n\n".join(ast.get_source_segment(cell.source, node) or "" for node in nodes)
            hints = [HINTS[name] for node in nodes for name in names_of(node) if name in HINTS]
            cell.source = emptied(cell.source, nodes)
            help = [*map(folded_hints, hints), folded_answer(answer)]
            cells.append(nbformat.v4.new_markdown_cell("\n\n".join(help)))
    for index, cell in enumerate(cells):
        cell["id"] = f"cell-{index:03d}"
    kernel = notebook.metadata["kernelspec"]
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return nbformat.v4.new_notebook(cells=cells, metadata=metadata)


def write(source: Path) -> Path:
    """Writes the twin beside the notebook, in its folder."""
    file = source.parent / FOLDER / f"{source.stem}.ipynb"
    file.parent.mkdir(exist_ok=True)
    nbformat.write(twin(source), file)
    return file


def readers_part(cell: nbformat.NotebookNode) -> str:
    """The code of a cell that may be left out."""
    return "" if "given" in cell.metadata.get("tags", []) else without_magic(cell.source)


def without_magic(code: str) -> str:
    return re.sub(r"^[%!]", "# ", code, flags=re.M)


def from_a_folder_below(text: str) -> str:
    """Links to files beside the notebook go one folder up."""
    return re.sub(r"\]\((?!https?:|#|/)", "](../", text)


# ---- what is left out ----------------------------------------------------------------------------


def to_write(cells: list[ast.Module]) -> list[list[Definition]]:
    """For each cell the definitions in it that a check of this or a later cell is about."""
    places: dict[str, tuple[int, Definition]] = {}  # where a name was defined last
    chosen: list[list[Definition]] = [[] for _ in cells]
    for number, cell in enumerate(cells):
        for statement in cell.body:
            for checked in checks_in(statement):
                for at, node in makers(checked, places, statement):
                    if node not in chosen[at]:
                        chosen[at].append(node)
            if isinstance(statement, Definition):
                places |= dict.fromkeys(names_of(statement), (number, statement))
    return [sorted(nodes, key=lambda node: node.lineno) for nodes in chosen]


def checks_in(statement: ast.stmt) -> Iterator[ast.expr]:
    """`mine` of every check in a statement that stops the notebook."""
    for node in ast.walk(statement):
        match node:
            case ast.Call(
                func=ast.Attribute(
                    attr="raise_if_wrong",
                    value=ast.Call(
                        func=ast.Attribute(attr="check", value=ast.Name(id="sf")),
                        args=[_, mine, *_],
                    ),
                )
            ):
                yield mine
            case ast.Call(
                func=ast.Attribute(
                    attr="raise_if_wrong",
                    value=ast.Call(
                        func=ast.Attribute(
                            attr="check_trace" | "check_gradients" | "check_step",
                            value=ast.Name(id="sf"),
                        ),
                        args=[mine, *_],
                    ),
                )
            ):
                yield mine
            case ast.Call(
                func=ast.Attribute(
                    attr="assert_close",
                    value=ast.Attribute(attr="testing", value=ast.Name(id="sf")),
                ),
                args=[mine, *_],
            ):
                yield mine


def makers(
    mine: ast.expr, places: dict[str, tuple[int, Definition]], statement: ast.stmt
) -> Iterator[tuple[int, Definition]]:
    """The definitions that made an expression: a variable, the notebook's functions that its value
    calls, the classes of the objects that it calls. What a loop assigns is looked up in the loop."""
    match mine:
        case ast.Tuple(elts=parts) | ast.Dict(values=parts):
            for part in parts:
                yield from makers(part, places, statement)
        case ast.Name(id=name):
            inside = [
                node.value
                for node in ast.walk(statement)
                if node is not statement and isinstance(node, ast.Assign) and name in names_of(node)
            ]
            if inside:
                yield from functions_in(inside[-1], places)
            elif name in places and isinstance(places[name][1], ast.Assign):
                at, node = places[name]
                called = list(functions_in(node.value, places))
                yield from called
                for one in ast.walk(node.value):  # what it is made of, in the same cell
                    if isinstance(one, ast.Name) and places.get(one.id, (-1, node))[0] == at:
                        part = places[one.id][1]
                        if isinstance(part, ast.Assign):
                            yield from functions_in(part.value, places)
                if not (called and is_plain_call(node.value)):
                    yield at, node
            elif name in places and isinstance(places[name][1], ast.FunctionDef):
                yield places[name]
        case _:
            yield from functions_in(mine, places)


def functions_in(
    value: ast.expr, places: dict[str, tuple[int, Definition]]
) -> Iterator[tuple[int, Definition]]:
    """The notebook's functions, and classes of objects, that an expression calls."""
    for node in ast.walk(value):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(value=ast.Name(id=name))):
                at, made = places.get(name, (0, None))
                if isinstance(made, ast.Assign) and isinstance(made.value, ast.Call):  # an object
                    yield from functions_in(made.value, places)
                elif isinstance(made, ast.FunctionDef | ast.ClassDef) and name not in GIVEN:
                    yield at, made


def is_plain_call(value: ast.expr) -> bool:
    """Nothing is left to write but names of arguments: f(x), or f(x), f(y)."""
    parts = value.elts if isinstance(value, ast.Tuple) else [value]
    return all(isinstance(part, ast.Call) and isinstance(part.func, ast.Name) for part in parts)


def names_of(node: Definition) -> list[str]:
    if not isinstance(node, ast.Assign):
        return [node.name]
    (target, *_) = node.targets
    parts = target.elts if isinstance(target, ast.Tuple) else [target]
    return [part.id for part in parts if isinstance(part, ast.Name)]


# ---- how it is left out --------------------------------------------------------------------------


def emptied(code: str, nodes: list[Definition]) -> str:
    """Functions keep their first lines and docstrings, variables their names; comments behind them
    stay."""
    lines = code.splitlines()
    for first, last, text in sorted(replaced(nodes, lines), reverse=True):
        lines[first - 1 : last] = [text]
    return "\n".join(lines)


def replaced(nodes: list[Definition], lines: list[str]) -> Iterator[tuple[int, int, str]]:
    for node in nodes:
        match node:
            case ast.Assign():
                yield node.lineno, node.end_lineno or 0, assigned(node, lines)
            case ast.FunctionDef():
                yield body(node)
            case ast.ClassDef():
                methods = [one for one in node.body if isinstance(one, ast.FunctionDef)]
                yield from (body(one) for one in methods if one.name != "__init__")


def body(function: ast.FunctionDef) -> tuple[int, int, str]:
    """What stands in place of a function's code."""
    first, *rest = function.body
    if rest and ast.get_docstring(function) is not None:
        first = rest[0]
    return first.lineno, function.end_lineno or 0, " " * first.col_offset + UNWRITTEN


def assigned(node: ast.Assign, lines: list[str]) -> str:
    (target,) = node.targets
    count = len(target.elts) if isinstance(target, ast.Tuple) else 1
    last = lines[(node.end_lineno or 0) - 1]
    comment = last.encode()[node.end_col_offset :].decode()
    return f"{ast.unparse(target).strip('()')} = {', '.join(['...'] * count)}{comment}"
