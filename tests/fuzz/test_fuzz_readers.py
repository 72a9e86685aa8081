"""Every reader of files of strangers, fuzzed: so many inputs from a fixed seed, each target in a
process of its own. SIMDFORMER_FUZZ_SECONDS=600 gives each target that long instead; run.py has more
options."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from targets import TARGETS

RUNS = 250
RUN = Path(__file__).with_name("run.py")
SECONDS = os.environ.get("SIMDFORMER_FUZZ_SECONDS")


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_no_input_does_harm(name, tmp_path):
    much = ["--seconds", SECONDS] if SECONDS else ["--runs", str(RUNS)]
    ended = subprocess.run(
        [sys.executable, RUN, name, *much, "--findings", tmp_path], capture_output=True, text=True
    )
    findings = [(file.name, file.read_bytes()[:2000]) for file in tmp_path.iterdir()]
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}\n{findings}"


@pytest.mark.parametrize("name", TARGETS)
def test_an_input_cut_anywhere_does_no_harm(name):
    """At a hundred places, and at every one of its first and last bytes."""
    target = TARGETS[name]
    try:
        for data in target.inputs():
            target(data)
            size = len(data)
            for end in sorted(
                {*range(40), *range(0, size, size // 60 + 1), *range(size - 40, size)}
            ):
                if 0 <= end < size:
                    target(data[:end])
    finally:
        target.close()
