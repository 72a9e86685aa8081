"""Programs of their own: for what happens before the import, at exit, and to signals and forks."""

import os
import subprocess
import sys
import textwrap

# A hang is a failure, and not one that takes the rest of the tests with it. A busy machine is none.
HANG = 600

OURS = ("SIMDFORMER_ISA", "SIMDFORMER_NUM_THREADS", "OMP_NUM_THREADS")

PRELUDE = """\
import os, signal, sys, threading, time
import numpy as np
import simdformer as sf

# Jobs in the background of a shell ignore it, and so would their children.
signal.signal(signal.SIGINT, signal.default_int_handler)

def workers():
    "The threads of the pool, by the name that the system shows."
    names = []
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/comm") as file:
                names.append(file.read().strip())
        except FileNotFoundError:  # it has just ended
            pass
    return names.count("simdformer")

x = np.random.default_rng(1).standard_normal((1024, 1024), dtype=np.float32)
small = x[:1, :8]

def call():
    "Long enough to be shared by many threads."
    return sf.softmax(x)

def eternity():
    "A call that takes minutes: who comes back from it early was answered in the middle."
    q = np.broadcast_to(np.ones(64, np.float32), (1, 400_000, 64))
    return sf.scaled_dot_product_attention(q, q, q)
"""


def environment(**variables):
    kept = {name: value for name, value in os.environ.items() if name not in OURS}
    kept["TQDM_DISABLE"] = "1"  # on a busy machine a load takes long enough for a progress bar
    return kept | variables


def start_python(code, stdin=None, **variables):
    code = PRELUDE + textwrap.dedent(code)
    return subprocess.Popen(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code],
        env=environment(**variables),
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    """Its exit status, stdout and stderr."""
    try:
        out, err = process.communicate(timeout=HANG)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"it hangs\n{out}\n{err}") from None
    return process.returncode, out, err


def run_python(code, **variables):
    """What a program prints. It has to end well and say nothing on stderr."""
    status, out, err = finish(start_python(code, **variables))
    assert (status, err) == (0, ""), f"exit status {status}\n{out}\n{err}"
    return out.strip()


def import_error(**variables):
    """The last line of the traceback that `import simdformer` ends in."""
    status, _, err = finish(start_python("", **variables))
    assert status == 1
    return err.strip().splitlines()[-1]
