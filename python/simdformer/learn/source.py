"""What a step reads, as a person would write it on a board: `s.scores * s.run.dtype(0.5)` is
scores * 0.5. The lines come from the source of the function, wherever that can be found."""

import ast
import difflib
import inspect
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import cache
from types import CodeType
from typing import Any

__all__ = ["called", "difference", "expression", "statements"]

Found = ast.FunctionDef | ast.Lambda
CONTEXT = 4  # lines of a difference that still are read at a glance
CASTS = ("dtype", "array", "rounded")  # of a run: s.run.dtype(x) says how exactly, not what


def statements(function: Callable[..., Any]) -> list[str]:
    """The body of a function, a line a statement; empty where there is no source."""
    found = _found(function)
    if not isinstance(found, ast.FunctionDef):
        return []
    lines = []
    for statement in found.body:
        if _says_something(statement):
            lines += ast.unparse(_plain(statement, function)).splitlines()
    return lines


def expression(function: Callable[..., Any]) -> str:
    """What a lambda gives."""
    found = _found(function)
    return ast.unparse(_plain(found.body, function)) if isinstance(found, ast.Lambda) else "..."


def called(lines: list[str], name: str, body: list[str]) -> list[str]:
    """Lines in which a function of that name is called, with its body in that place."""
    return [
        line[: -len(name)] + inner if line.strip() == name else line
        for line in lines
        for inner in (body if line.strip() == name else [""])
    ]


def difference(wrong: list[str], right: list[str]) -> list[str]:
    """The lines of the wrong one behind -, those of the right one behind +; of a few lines also
    what they have in common."""
    lines = [line for line in difflib.ndiff(wrong, right) if not line.startswith("? ")]
    changed = [line for line in lines if not line.startswith("  ")]
    return lines if changed and len(lines) <= CONTEXT else changed


# ---- where it stands -----------------------------------------------------------------------------


def _found(function: Any) -> Found | None:
    code = getattr(function, "__code__", None)
    if code is None:
        return None
    try:
        lines, _ = inspect.findsource(function)
    except (OSError, TypeError):
        return None
    found = _definitions("".join(lines)).get(_key(code), [])
    return next((node for node in found if len(found) == 1 or _holds(node, code)), None)


def _key(code: CodeType) -> tuple[int, str, tuple[str, ...]]:
    return code.co_firstlineno, code.co_name, code.co_varnames[: code.co_argcount]


def _holds(node: Found, code: CodeType) -> bool:
    """Whether this is the code of that lambda, where several stand in one line."""
    ends = [end for _, _, start, end in code.co_positions() if start and end]
    return isinstance(node, ast.Lambda) and max(ends, default=0) == node.body.end_col_offset


@cache
def _definitions(source: str) -> dict[tuple[int, str, tuple[str, ...]], list[Found]]:
    """All functions of a file, by what their code knows of where they stand."""
    found: dict[tuple[int, str, tuple[str, ...]], list[Found]] = defaultdict(list)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            found[first, node.name, _parameters(node)].append(node)
        elif isinstance(node, ast.Lambda):
            found[node.lineno, "<lambda>", _parameters(node)].append(node)
    return found


def _parameters(node: Found) -> tuple[str, ...]:
    return tuple(argument.arg for argument in node.args.args)


# ---- how it is said ------------------------------------------------------------------------------


def _says_something(statement: ast.stmt) -> bool:
    """Not docstrings, nor lines that leave a call alone for which there is another mistake."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return False
    if isinstance(statement, ast.If) and isinstance(statement.body[0], ast.Raise):
        return False
    return not isinstance(statement, ast.Pass)


def _plain(node: ast.AST, function: Callable[..., Any]) -> ast.AST:
    """A copy without the state of the run, with the values of variables from outside."""
    outside = inspect.getclosurevars(function).nonlocals
    copied = ast.parse(ast.unparse(node)).body[0]
    plain = _Plain(outside).visit(copied.value if isinstance(copied, ast.Expr) else copied)
    found: ast.AST = ast.fix_missing_locations(plain)
    return found


class _Plain(ast.NodeTransformer):
    def __init__(self, names: Mapping[str, Any]) -> None:
        self.names = names
        self.bound: set[str] = set()  # parameters of functions inside: s.cache is not their cache

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        self.bound |= set(_parameters(node))
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> Any:
        value = self.names.get(node.id)
        if isinstance(value, ast.AST):
            return value
        if isinstance(value, int | float | str):
            return ast.Constant(value)
        return ast.Name(value.__name__) if isinstance(value, type) else node

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        if (
            isinstance(node.value, ast.Name)
            and node.value.id == "s"
            and node.attr not in self.bound
        ):
            return ast.Name(node.attr)
        if node.attr == "out" and _of_run(node.value):
            return self.visit(node.value)
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> Any:
        called = node.func
        if isinstance(called, ast.Attribute):
            if called.attr in CASTS and ast.unparse(called.value) == "s.run":
                return self.visit(node.args[0])
            if called.attr == "astype" and ast.unparse(node.args[0]) == "s.run.dtype":
                return self.visit(called.value)
            if _of_run(node):  # another program
                node = ast.Call(node.args[0], node.args[1:], node.keywords)
        if isinstance(called, ast.Name) and called.id in self.names:
            inlined = _found(self.names[called.id])
            if isinstance(inlined, ast.Lambda):
                values = [self.visit(argument) for argument in node.args]
                meant = dict(zip(_parameters(inlined), values, strict=True))
                return self.visit(_Plain(meant).visit(_copy(inlined.body)))
        if [ast.unparse(each) for each in node.args] == ["s"] and not node.keywords:
            return self.visit(called)  # a function of the variables
        node.args = [each for each in node.args if ast.unparse(each) != "s"]
        return self.generic_visit(node)


def _of_run(node: ast.AST) -> bool:
    """s.run(program, ...)"""
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "s.run"


def _copy(node: ast.expr) -> ast.expr:
    return ast.parse(ast.unparse(node), mode="eval").body
