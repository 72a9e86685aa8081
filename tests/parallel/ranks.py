"""Programs on several ranks, started as people start them: with mpiexec."""

import os
import re
import subprocess
import sys
from pathlib import Path

import subprocesses
from subprocesses import environment

HERE = Path(__file__).parent
# On a machine with two cores several ranks wait for each other's turns: one thread each.
PATHS = os.pathsep.join([str(HERE.parent), str(HERE)])
# Open MPI starts no more ranks than there are cores, and none of root's, unless it is told to.
OPEN_MPI = {
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}
QUIET = {"PYTHONPATH": PATHS, "SIMDFORMER_NUM_THREADS": "1"} | OPEN_MPI
# What its mpiexec adds of its own when a program fails: framed paragraphs, PMIx's lines, a last 0.
ADDED = re.compile(r"(?ms)^(-{70,})\n.*?^\1\n|^\[\S+:\d+\] PMIX ERROR: [^\n]*\n|\0")


def mpiexec(size, *arguments):
    """The command that starts so many ranks of a Python program."""
    starter = Path(sys.executable).with_name("mpiexec")
    return [str(starter), "-n", str(size), sys.executable, *map(str, arguments)]


def start(size, *arguments, **variables):
    return process_of(mpiexec(size, *arguments), variables)


def process_of(command, variables):
    return subprocess.Popen(
        command,
        env=environment(**QUIET | variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process):
    """Its exit status, stdout and stderr."""
    status, out, err = subprocesses.finish(process)
    return status, out, ADDED.sub("", err)


def run(size, *arguments, **variables):
    return finish(start(size, *arguments, **variables))


def alone(*arguments, **variables):
    """The same without mpiexec."""
    return finish(process_of([sys.executable, *arguments], variables))


def program(size, name, *arguments, **variables):
    """What a program beside this file prints. It has to end well and say nothing on stderr."""
    status, out, err = run(size, HERE / name, *arguments, **variables)
    assert (status, err) == (0, ""), f"exit status {status}\n{out}\n{err}"
    return out


def cli(size, *arguments, **variables):
    """Exit status, stdout and stderr of a command of ours."""
    return run(size, "-m", "simdformer", *arguments, **variables)
