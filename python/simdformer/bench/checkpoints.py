"""A checkpoint of yours as work: how fast it loads, reads and writes here, beside whoever opens it
too.

Processes that do nothing else load it, from the page cache, so that it is not the disk that is
measured. llama.cpp reads the same GGUF file, transformers the same directory in bfloat16. Errors
are those of the logits after a few ids, against the same weights in float64: see `Exact`.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

import simdformer as sf
from simdformer.bench.contestants import OURS, Contestant, Missing
from simdformer.bench.machine import Limits
from simdformer.bench.models import CHECKED, MODEL_GOALS, PROMPT_GOALS, STEP_GOALS, ModelRun
from simdformer.bench.results import Loaded, Measurement, Result
from simdformer.bench.work import (
    BOTH,
    SEED,
    Case,
    Dtype,
    Goal,
    Inputs,
    Unit,
    another_result,
    relative_error,
    times,
)
from simdformer.checkpoints import read_checkpoint
from simdformer.checkpoints.locate import locate
from simdformer.models import Transformer
from simdformer.models.budget import decode_bytes
from simdformer.models.tensors import Quantized

__all__ = ["FIRST_TOKEN", "CheckpointRun", "Loading", "checkpoint_cases", "run_loading"]

PROMPT, IN_CACHE = 512, 64  # ids, or as many as the model takes
PLAIN_READING, FIRST_TOKEN = "plain reading", "first token"
LOADING_GOALS = (times(0.67, PLAIN_READING), Goal(1.05, "memory"))
FEWEST_LOADS = 3
# Files are read into new memory, as a model is. Resident is what Linux counts; elsewhere it stays
# unknown.
LOAD = """
import json, sys, time
from pathlib import Path
import simdformer as sf

path, format, files, ids, rows = json.loads(sys.argv[1])
load, clock = sf.from_pretrained, time.perf_counter  # imports
start = clock()
for file in files:
    Path(file).read_bytes()
read = clock() - start

start = clock()
model = load(path, format=format)
loaded = clock() - start
status = Path("/proc/self/status")
lines = status.read_text().splitlines() if status.exists() else ["VmRSS: nan"]
(resident,) = (1024 * float(line.split()[1]) for line in lines if line.startswith("VmRSS"))

start = clock()
logits = model(ids, model.new_cache(len(ids)), 1)[-1]
token = loaded + clock() - start
print(json.dumps([loaded, token, read, resident, logits[rows].tolist()]))
"""


def checkpoint_cases(path: str | os.PathLike[str], format: str | None = None) -> list[Case]:
    """A model of yours loaded, a prompt and a step of decoding; `path` and `format` are those of
    `from_pretrained`. Floats of 16 bits read the prompt in bfloat16 too.

    FileNotFoundError, CheckpointError: as `from_pretrained` has them.
    """
    checkpoint = read_checkpoint(locate(path), format)
    config, held = checkpoint.config, checkpoint.weights["layers.0.wo"]
    sizes: dict[str, Any] = {"config": config, "path": str(checkpoint.path)}
    sizes["format"] = checkpoint.format.name
    prompt = min(PROMPT, config.max_seq_len)
    step = CheckpointRun(new=1, in_cache=min(IN_CACHE, config.max_seq_len - 1), **sizes)
    name, quantised = checkpoint.path.name, isinstance(held, Quantized)
    reading, writing = (PROMPT_GOALS, STEP_GOALS) if quantised else (MODEL_GOALS, MODEL_GOALS)
    arithmetics = BOTH if not quantised and held.dtype.itemsize == 2 else BOTH[:1]
    prompts = [CheckpointRun(new=prompt, dtype=dtype, **sizes) for dtype in arithmetics]
    loading = Loading(new=min(CHECKED, config.max_seq_len), **sizes)
    cases = [Case(f"{name}/load", loading, LOADING_GOALS)]
    cases += [Case(f"{name}/prefill/{work.dtype}", work, reading) for work in prompts]
    cases.append(Case(f"{name}/decode", step, writing))
    return cases


@dataclass(frozen=True, kw_only=True)
class CheckpointRun(ModelRun):
    """`new` ids through the model at `path`, whose `config` is known already."""

    path: str
    format: str

    @property
    def cache_dtype(self) -> Dtype:
        return "float32"

    @property
    def model(self) -> Any:
        return self.path, self.format

    def packed(self, inputs: Inputs) -> Transformer:
        checkpoint = read_checkpoint(Path(self.path), self.format)
        return Transformer.of_fitting(checkpoint.config, checkpoint.weights)

    @property
    def nbytes(self) -> int:
        """What a step of decoding reads. A prompt reads more of a mixture's experts."""
        weights = self.our_model({}).weights
        return decode_bytes(self.config, weights, self.in_cache + self.new, 4)

    def inputs(self, rng: np.random.Generator) -> Inputs:
        """ids"""
        return {"ids": self.ids(rng)}

    def given_to(self, library: ModuleType, inputs: Inputs) -> Any:
        return library.open_model(Path(self.path), self.config)


@dataclass(frozen=True, kw_only=True)
class Loading(CheckpointRun):
    """From the files at `path` to the model, its tokenizer with it, beside plain reading of the
    files; and on to the token after a prompt of `new` ids."""

    operation: ClassVar[str] = "load a model"
    counted_in: ClassVar[Unit] = "GB/s"
    peers: ClassVar[tuple[str, ...]] = (PLAIN_READING,)
    errors_of: ClassVar[tuple[str, ...]] = ()

    @property
    def flops(self) -> int:
        """Nothing is computed on the way to a model; 0 keeps it off the roofline."""
        return 0

    @property
    def nbytes(self) -> int:
        """The bytes of the files that the weights lie in."""
        return sum(file.stat().st_size for file in files_of(Path(self.path), self.format))

    def contestants(self, inputs: Inputs) -> list[Contestant | Missing]:
        """Nobody: processes of their own do it, see `run_loading`."""
        return []


def run_loading(case: Case, work: Loading, limits: Limits, budget: float) -> Result:
    """`work` is that of the case. As many processes as fit into `budget` seconds, three at least;
    resident memory is the most that one has had.
    """
    inputs = work.inputs(np.random.default_rng(SEED))
    try:
        runs = list(loads(work, inputs, budget))  # while no model of ours takes memory
    except RuntimeError as failure:
        return Result(case, limits, {}, {OURS: f"does not load: {failure}"})
    *times, resident, logits = zip(*runs, strict=True)
    expected = work.expected(inputs)
    error = max(relative_error(np.array(one), expected) for one in logits)
    if not error <= work.tolerance:  # or NaN
        return Result(case, limits, {}, {OURS: another_result(error)})
    names = (OURS, FIRST_TOKEN, PLAIN_READING)
    measured = {
        name: Measurement.of("from_pretrained", samples, error)
        for name, samples in zip(names, times, strict=True)
    }
    return Result(case, limits, measured, loaded=Loaded(max(resident), work.nbytes))


def loads(work: Loading, inputs: Inputs, budget: float) -> Iterator[Any]:
    """What each process found: seconds of loading, until there is a token and of reading, resident
    memory, logits. RuntimeError with its last words when one fails."""
    files = list(map(str, files_of(Path(work.path), work.format)))
    ids, rows = work.checked_ids(inputs).tolist(), work.sampled().tolist()
    wanted = json.dumps([work.path, work.format, files, ids, rows])
    settings = {"SIMDFORMER_ISA": sf.isa(), "SIMDFORMER_NUM_THREADS": str(sf.get_num_threads())}
    start, done = time.perf_counter(), 0
    while done < FEWEST_LOADS or time.perf_counter() - start < budget:
        found = subprocess.run(
            [sys.executable, "-c", LOAD, wanted],
            env=os.environ | settings,
            capture_output=True,
            text=True,
            check=False,
        )
        if found.returncode:
            last_words = found.stderr.strip().splitlines()[-1:]
            raise RuntimeError(*last_words or [f"exit status {found.returncode}"])
        yield json.loads(found.stdout)
        done += 1


def files_of(path: Path, format: str | None = None) -> list[Path]:
    """The files that the weights of a checkpoint lie in."""
    weights: Iterable[Any] = read_checkpoint(path, format).weights.values()
    found = dict.fromkeys(tensor.file.path for tensor in weights if hasattr(tensor, "file"))
    return list(map(Path, found))
