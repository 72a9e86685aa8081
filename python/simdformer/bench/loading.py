"""Loading as work: a checkpoint, read by processes that do nothing else.

One of random weights is written to the folder for temporary files, and gone afterwards. Each
process imports this package, reads the files once into new memory, then loads the model from them
and asks for the first token; times are those of the process, without its start. The files lie in
the page cache meanwhile, so that it is not the disk that is measured.
"""

import errno
import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import simdformer as sf
from simdformer.bench.contestants import OURS, Contestant, Missing
from simdformer.bench.machine import Limits
from simdformer.bench.models import CHECKED, SHAPES, ModelRun
from simdformer.bench.results import Loaded, Measurement, Result
from simdformer.bench.work import SEED, Case, Goal, Inputs, Unit, numpy_dtype, relative_error
from simdformer.checkpoints import read_checkpoint
from simdformer.checkpoints.gguf_encode import Losses, in_mixture
from simdformer.checkpoints.gguf_export import of_model
from simdformer.checkpoints.gguf_writer import NewTensor, write_gguf
from simdformer.models import Transformer, weight_shapes
from simdformer.training.export import export
from simdformer.types import Array

__all__ = [
    "LOADING_GOALS",
    "Loading",
    "files_of",
    "loading_cases",
    "run_loading",
]

LOADING_GOALS = (Goal(1.5, "reading"), Goal(1.05, "memory"))
IN_FEW_BITS = ("q8_0", "q4_k_m")
FEWEST_LOADS = 3
ROOM = 1 << 20  # bytes beside the weights: header, config.json
# Resident is what Linux counts; elsewhere it stays unknown.
LOAD = """
import json, sys, time
from pathlib import Path
import simdformer as sf

wanted = json.loads(sys.argv[1])
sf.set_isa(wanted["isa"])
sf.set_num_threads(wanted["threads"])
clock = time.perf_counter
load = sf.from_pretrained  # imports

reading = 0.0
for file in wanted["files"]:
    start = clock()
    data = Path(file).read_bytes()
    reading += clock() - start
    del data

start = clock()
model = load(wanted["path"], format=wanted["format"])
loading = clock() - start
status = Path("/proc/self/status")
resident = None
if status.exists():
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
    resident = int(lines["VmRSS"].split()[0]) * 1024

start = clock()
logits = model(wanted["ids"], model.new_cache(len(wanted["ids"])), 1)[-1]
logits.argmax()
first_token = loading + clock() - start
print(json.dumps({
    "reading": reading,
    "loading": loading,
    "first_token": first_token,
    "resident": resident,
    "logits": logits[wanted["rows"]].tolist(),
}))
"""


def loading_cases() -> Iterator[Case]:
    """Each shape once in bfloat16, and the smaller one in few bits."""
    for shape, config in SHAPES.items():
        yield Case(f"{shape}/load", Loading(config=config, new=CHECKED), LOADING_GOALS)
    shape, config = next(iter(SHAPES.items()))
    for mixture in IN_FEW_BITS:
        work = Loading(config=config, new=CHECKED, mixture=mixture)
        yield Case(f"{shape}/{mixture}/load", work, LOADING_GOALS)


@dataclass(frozen=True, kw_only=True)
class Loading(ModelRun):
    """From a file to a model, and on to the token after a prompt of `new` ids. The file is that of
    Hugging Face, in bfloat16, or one of llama.cpp in the types of a mixture, such as "q4_k_m"."""

    counted_in: ClassVar[Unit] = "GB/s"
    operation: ClassVar[str] = "load a model"
    mixture: str | None = None
    format: str | None = None  # None: there is only one

    @property
    def model(self) -> Any:
        return self.config, "from a file", self.mixture

    @property
    def flops(self) -> int:
        """Nothing is computed on the way to a model; 0 keeps it off the roofline."""
        return 0

    @property
    def nbytes(self) -> int:
        """The weights, as the file has them."""
        if self.mixture is None:
            return 2 * sum(map(math.prod, weight_shapes(self.config).values()))
        nothing = np.zeros((), numpy_dtype("bfloat16"))
        shapes = weight_shapes(self.config)
        weights = {name: np.broadcast_to(nothing, shape) for name, shape in shapes.items()}
        return sum(tensor.nbytes for tensor in self.tensors(weights)[1])

    def contestants(self, inputs: Inputs) -> list[Contestant | Missing]:
        """Nobody: processes of their own do it, see `run_loading`."""
        return []

    @contextmanager
    def saved(self, inputs: Inputs) -> Iterator[Path]:
        """What is loaded, as long as it is there. OSError where there is no room for it."""
        with tempfile.TemporaryDirectory(prefix="simdformer-bench-") as folder:
            needed, free = self.nbytes + ROOM, shutil.disk_usage(folder).free
            if free < needed:
                sizes = f"{needed / 1e9:.1f} GB are needed, {free / 1e9:.1f} GB are free"
                raise OSError(errno.ENOSPC, sizes, folder)
            yield self.write(Path(folder), inputs["weights"])

    def write(self, directory: Path, weights: Mapping[str, Array]) -> Path:
        """The checkpoint of these weights in a directory that is empty: its path."""
        if self.mixture is None:
            export(directory, self.config, weights, tokenizer=None, eos_ids=())
            return directory
        path = directory / "model.gguf"
        keys, tensors = self.tensors(weights)
        write_gguf(path, {**keys, "tokenizer.ggml.model": "no_vocab"}, tensors)
        return path

    def tensors(self, weights: Mapping[str, Array]) -> tuple[Mapping[str, Any], list[NewTensor]]:
        """The keys and tensors of a file in that mixture; nothing is rounded yet."""
        assert self.mixture is not None
        source = of_model(self.config, weights, "model")
        return source.keys, in_mixture(source, self.mixture, Losses(), lambda nbytes: None)

    def packed(self, inputs: Inputs) -> Transformer:
        """A model of the weights that the file at inputs["path"] has."""
        found = read_checkpoint(inputs["path"])
        return Transformer.of_fitting(found.config, found.weights)


def run_loading(case: Case, work: Loading, limits: Limits, budget: float) -> Result:
    """`work` is that of the case. As many processes as fit into `budget` seconds, three at least;
    each time is the best of them, resident memory the most.
    """
    inputs = work.inputs(np.random.default_rng(SEED))
    try:
        with work.saved(inputs) as path:
            wanted = {
                "path": str(path),
                "format": work.format,
                "files": files_of(path, work.format),
                "isa": sf.isa(),
                "threads": sf.get_num_threads(),
                "ids": work.checked_ids(inputs).tolist(),
                "rows": work.sampled().tolist(),
            }
            runs = list(loads(wanted, budget))  # while no model of ours takes memory
            expected = work.expected({**inputs, "path": path})
    except OSError as refusal:
        return Result(case, limits, {}, skipped=f"no checkpoint could be written: {refusal}")
    except RuntimeError as failure:
        return Result(case, limits, {}, {OURS: f"does not load: {failure}"})
    error = max(relative_error(np.array(run["logits"]), expected) for run in runs)
    if not error <= work.tolerance:  # or NaN
        why = f"gives another result, {error:.1e} away from float64"
        return Result(case, limits, {}, {OURS: why})
    loaded = Loaded(
        reading=min(run["reading"] for run in runs),
        first_token=min(run["first_token"] for run in runs),
        resident=max(run["resident"] or math.nan for run in runs),
        weights=work.nbytes,
    )
    mine = Measurement.of("from_pretrained", [run["loading"] for run in runs], error)
    return Result(case, limits, {OURS: mine}, loaded=loaded)


def loads(wanted: Mapping[str, Any], budget: float) -> Iterator[dict[str, Any]]:
    """What each process found. RuntimeError with its last words when one fails."""
    start, done = time.perf_counter(), 0
    while done < FEWEST_LOADS or time.perf_counter() - start < budget:
        found = subprocess.run(
            [sys.executable, "-c", LOAD, json.dumps(wanted)],
            capture_output=True,
            text=True,
            check=False,
        )
        if found.returncode:
            last_words = found.stderr.strip().splitlines()[-1:]
            raise RuntimeError(*last_words or [f"exit status {found.returncode}"])
        yield json.loads(found.stdout)
        done += 1


def files_of(path: Path, format: str | None = None) -> list[str]:
    """The files that the weights of a checkpoint lie in."""
    weights: Iterable[Any] = read_checkpoint(path, format).weights.values()
    return list(dict.fromkeys(tensor.file.path for tensor in weights if hasattr(tensor, "file")))
