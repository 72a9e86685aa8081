"""How the demonstration shows code, verdicts and differences."""

import os
import sys
import textwrap

import numpy as np

from simdformer.types import Array

__all__ = ["SHADES", "check", "difference", "show"]

SHADES = " ░▒▓█"  # a share of 0, up to a quarter, ..., more than three quarters


def show(who: str, code: str) -> None:
    lines = textwrap.dedent(code).strip("\n").splitlines()
    for index, line in enumerate(lines):
        print(f"   {who if index == 0 else ' ' * len(who)}  {line}")


def check(right: bool, what: str) -> bool:
    """Prints the verdict, in colour on a terminal, and gives it back."""
    mark, colour = ("✓ agree ", 32) if right else ("✗ DIFFER", 31)
    if sys.stdout.isatty() and "NO_COLOR" not in os.environ:
        mark = f"\x1b[{colour}m{mark}\x1b[0m"
    print(f"   {mark}  {what}")
    return right


def difference(mine: Array, kernel: Array) -> float:
    """The largest; infinite for other shapes, a NaN, or infinities in other places."""
    mine, kernel = np.asarray(mine), np.asarray(kernel)
    if mine.shape != kernel.shape:
        return float("inf")
    with np.errstate(invalid="ignore"):
        differences = np.where(mine == kernel, 0, np.abs(mine - kernel))
    return float(np.max(np.where(np.isnan(differences), np.inf, differences), initial=0))
