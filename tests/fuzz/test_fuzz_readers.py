"""Every reader of files of strangers, fuzzed: so many inputs from a fixed seed, each target in a
process of its own. SIMDFORMER_FUZZ_SECONDS=600 gives each target that long instead; run.py has more
options."""

import os
import random
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


@pytest.fixture(params=TARGETS)
def target(request):
    yield TARGETS[request.param]
    TARGETS[request.param].close()


def test_an_input_cut_anywhere_is_refused(target):
    """At a hundred places, and at every one of its first and last bytes. The beginning of a file of
    some formats may be read."""
    for data in target.inputs():
        assert target(data)
        size = len(data)
        places = {*range(40), *range(0, size, size // 60 + 1), *range(size - 40, size)}
        for end in sorted(place for place in places if 0 <= place < size):
            assert not target(data[:end]) or not target.whole, end


def test_any_byte_of_an_input_may_be_wrong(target):
    """A hundred inputs with one byte changed, and as many with bytes of nobody's behind."""
    chance = random.Random(3)
    for data in target.inputs():
        for _ in range(100):
            at = chance.randrange(len(data))
            target(data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :])
            target(data[: at * chance.randrange(2)] + chance.randbytes(chance.randrange(60)))
