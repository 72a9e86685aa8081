"""Steps as they are written: a few lines of Python on the variables of a run.

    scale = Lines("scores = scores * real(scale_of(s))", {"scale_of": scale_of})
    scale(s)                      # s.scores is a new array
    scale.read                    # ['scores = scores * scale_of'], as a report shows it

A name is a variable of the run, or one of the names that come with the lines, or np, math, float16,
bfloat16, or one of these: array(x) and real(x), x in the dtype of the run; run(program, ...),
another program; s, the variables themselves, for functions of them; unless(condition), which ends a
mistake that is none here. In a wrong step, ... stands for the lines of the right one.
"""

import ast
import difflib
import math
import textwrap
from collections.abc import Mapping
from functools import cached_property, lru_cache
from types import CodeType
from typing import Any

import ml_dtypes
import numpy as np

__all__ = ["Lines", "difference", "named", "plain"]

CONTEXT = 4  # lines of a difference that still are read at a glance
MOST_TEXTS = 1 << 14  # that are kept compiled: the slips of the largest programs, some MB
CASTS = ("array", "real")  # array(x) says how exactly, not what


def unless(condition: Any) -> None:
    """Ends the run: on these variables it is no mistake, or another one."""
    if np.all(condition):
        raise ValueError("this mistake cannot be made here")


class Real:
    """The dtype of a run, for `astype`; called with a number, the number in it."""

    def __init__(self, run: Any) -> None:
        self.dtype, self.number = np.dtype(run.dtype), run.real

    def __call__(self, x: Any) -> Any:
        return self.number(x)

    def __eq__(self, other: object) -> bool:
        return bool(other == self.dtype.type or other == self.dtype)

    def __hash__(self) -> int:
        return hash(self.dtype)


EVERYWHERE = {
    "np": np,
    "math": math,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "unless": unless,
}


def named(things: tuple[Any, ...]) -> dict[str, Any]:
    """Functions and programs by their names."""
    return {getattr(one, "name", None) or one.__name__: one for one in things}


class Lines:
    """A step; called with the variables of a run it gives some of them new values.

    text : the lines
    names : what they may call
    right : the step whose lines ... stands for
    """

    def __init__(self, text: str, names: Mapping[str, Any], right: "Lines | None" = None) -> None:
        self.text = textwrap.dedent(text).strip("\n")
        self.names, self.right = names, right

    def __repr__(self) -> str:
        return f"Lines({self.text!r})"

    def checked(self) -> "Lines":
        """The same; SyntaxError where they are no Python, which otherwise shows when they run."""
        ast.parse(self.text)
        return self

    def __call__(self, s: Any) -> None:
        exec(self.code, self.around(s), vars(s))

    def value(self, s: Any) -> Any:
        """The value of lines that are one expression."""
        return eval(self.expression, self.around(s), vars(s))

    def around(self, s: Any) -> dict[str, Any]:
        """All names but the variables; functions inside of the lines see them as they were."""
        found = {**self.own, "array": s.run.array, "real": Real(s.run), "s": s}
        return found | vars(s) if self.nests else found

    @cached_property
    def own(self) -> Mapping[str, Any]:
        return {**EVERYWHERE, **self.names}

    @cached_property
    def nests(self) -> bool:
        """Whether there are functions inside, or comprehensions that are functions."""
        return any(isinstance(one, CodeType) for one in self.code.co_consts)

    @cached_property
    def statements(self) -> list[ast.stmt]:
        found: list[ast.stmt] = []
        for statement in ast.parse(self.text).body:
            if self.right is not None and ast.unparse(statement) == "...":
                found += self.right.statements
            else:
                found.append(statement)
        return found

    @cached_property
    def code(self) -> CodeType:
        if self.right is None:
            return compiled(self.text, "exec")
        return compile(ast.Module(self.statements, []), "<a step>", "exec")

    @cached_property
    def expression(self) -> CodeType:
        return compiled(self.text, "eval")

    @cached_property
    def read(self) -> list[str]:
        """The lines as they are read: without casts and without what leaves a call alone."""
        said = [_Plain().visit(_copy(one)) for one in self.statements if _says_something(one)]
        return [line for one in said for line in _unparsed(one).splitlines()]


@lru_cache(MOST_TEXTS)
def compiled(text: str, mode: str) -> CodeType:
    return compile(text, "<a step>", mode)


def plain(node: ast.AST) -> str:
    """A statement or an expression as it is read."""
    copied = ast.parse(ast.unparse(node)).body[0]
    return _unparsed(_Plain().visit(copied))


def difference(wrong: list[str], right: list[str]) -> list[str]:
    """The lines of the wrong one behind -, those of the right one behind +; where they are
    few, also what they have in common."""
    lines = [line for line in difflib.ndiff(wrong, right) if not line.startswith("? ")]
    changed = [line for line in lines if not line.startswith("  ")]
    return lines if changed and len(lines) <= CONTEXT else changed


# ---- how they are read ---------------------------------------------------------------------------


def _says_something(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Pass):
        return False
    call = statement.value if isinstance(statement, ast.Expr) else None
    return not (isinstance(call, ast.Call) and ast.unparse(call.func) == "unless")


def _copy(statement: ast.stmt) -> ast.stmt:
    return ast.parse(ast.unparse(statement)).body[0]


def _unparsed(statement: ast.stmt) -> str:
    """As Python is written: a, b = b, a without parentheses."""
    said = ast.unparse(statement)
    if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Tuple):
        values = ast.unparse(statement.value)
        return said.removesuffix(values) + values[1:-1]
    return said


# Variables of the package's own, as somebody calls them who writes the formula down.
READ_AS = {"along": "axis", "sees": "has_visible_keys"}


class _Plain(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> Any:
        return ast.Name(READ_AS.get(node.id, node.id), node.ctx)

    def visit_Assign(self, node: ast.Assign) -> Any:
        targets = [ast.unparse(target) for target in node.targets]
        if targets == ["k_head", "v_head"]:  # which head of keys and values a query head reads
            node.targets = [ast.Name("kv_head", ast.Store())]
        return self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        if node.attr == "out" and _calls(node.value, "run"):
            return self.visit(node.value)
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> Any:
        if any(_calls(node, cast) for cast in CASTS):
            return self.visit(node.args[0])
        if ast.unparse(node).endswith(".astype(real)") and isinstance(node.func, ast.Attribute):
            return self.visit(node.func.value)
        if _calls(node, "run"):  # another program
            node = ast.Call(node.args[0], node.args[1:], node.keywords)
        others = [one for one in node.args if ast.unparse(one) != "s"]
        if not others and not node.keywords and node.args:
            return self.visit(node.func)  # a function of the variables
        node.args = others
        return self.generic_visit(node)


def _calls(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == name
