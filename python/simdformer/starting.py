"""Ctrl-C while the command `simdformer` is imported, which takes most of its first second.

An exception would come out of whatever is imported just then, and numpy makes an ImportError of it.
So until the command begins Ctrl-C ends the process at once, with status 130 as later. Python's own
start comes before that. In other programs Ctrl-C stays what it is.
"""

import os
import sys
from types import FrameType
from typing import NoReturn

from simdformer.mpiexec import INTERRUPTED, started

__all__ = ["begin", "is_command"]


def is_command(called: list[str], whole: list[str]) -> bool:
    """Whether this process is `simdformer ...`, or `python -m simdformer ...`: by what Python calls
    sys.argv and sys.orig_argv while it imports this package."""
    name = os.path.splitext(os.path.basename(called[0]))[0] if called else ""
    if name == "-m" and "-m" in whole[:-1]:
        name = whole[whole.index("-m") + 1]
    return name == "simdformer"


def interrupted(signal: int, frame: FrameType | None) -> NoReturn:
    os.write(2, b"\n")  # behind the ^C of a terminal
    os._exit(INTERRUPTED)


def end_on_ctrl_c() -> None:
    import signal

    # jobs in the background ignore it, and MPICH's mpiexec ends ranks where a signal has ended one
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupted if started() == 1 else signal.SIG_DFL)


def begin() -> None:
    """From now on Ctrl-C is an exception."""
    import signal

    if IS_COMMAND and signal.getsignal(signal.SIGINT) in (interrupted, signal.SIG_DFL):
        signal.signal(signal.SIGINT, signal.default_int_handler)


IS_COMMAND = is_command(getattr(sys, "argv", []), sys.orig_argv)
if IS_COMMAND:
    end_on_ctrl_c()
