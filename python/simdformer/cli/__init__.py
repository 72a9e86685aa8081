"""The command `simdformer`: run a model, walk through one attention step, show how the library is
set up.

What was asked for goes to stdout, everything about it to stderr. Exit status: 0, 1 when a check
fails, 2 for an error (a line on stderr says which), 130 after Ctrl-C. A command line is checked as
a whole before anything is loaded or written.

Every module here whose name has no leading underscore is a command, called as the module is. It has
a function `add(commands)` that describes its command line with `_shared.command`, and a function
that runs it; what takes time to import, that function imports.
"""

from simdformer.cli._main import main

__all__ = ["main"]
