"""The machine: what it is, and what it can do at most, floating-point operations and bytes read.

The limits are measured with two small kernels of our own, on all threads and in the instruction set
in use: independent chains of fused multiply-adds in registers, and a sum over an array. Nothing
that computes in float32 is faster than the first, nothing that has to read its data faster than the
second. (Products of bfloat16 have instructions of their own, which may be twice as fast.)
"""

import os
import platform
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

import simdformer as sf
from simdformer._core import fma_chains, read_memory
from simdformer.bench.contestants import Way
from simdformer.bench.stopwatch import Stopwatch, compare
from simdformer.bench.work import Work

__all__ = [
    "ITERATIONS",
    "LARGEST_READ",
    "Level",
    "Limits",
    "Machine",
    "best_time",
    "fma_chains",
    "free_memory",
    "measure_limits",
    "read_memory",
    "read_rate",
    "this_machine",
]

CPUS = Path("/sys/devices/system/cpu")
# whose versions matter, when installed
LIBRARIES = ("torch", "onnxruntime", "transformers", "llama-cpp-python")
FIRST_ITERATIONS = 1 << 20
ITERATIONS = 8 << 20  # of multiply-adds beside a case: about 10 ms
LONG_ENOUGH = 0.005  # seconds; starting threads and the last chunk then cost nothing
LARGEST_READ = 512 << 20  # bytes


@dataclass(frozen=True)
class Machine:
    """What a table of times must be read with. Caches in bytes, 0 where the system does not say.

    `l2` is what a thread has, `l3` what all of them have together.
    """

    cpu: str
    isa: str
    threads: int
    l2: int
    l3: int
    versions: dict[str, str]

    def __str__(self) -> str:
        """One line."""
        versions = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        return f"{self.title}; {versions}"

    @property
    def title(self) -> str:
        """Without the versions."""
        return f"{self.cpu}, {self.isa}, {self.threads} thread{'' if self.threads == 1 else 's'}"


def this_machine() -> Machine:
    """As it is set up now: `sf.isa()`, `sf.get_num_threads()`.

    >>> import simdformer as sf
    >>> from simdformer.bench import this_machine
    >>> this_machine().threads == sf.get_num_threads()
    True
    """
    threads = sf.get_num_threads()
    return Machine(
        cpu=cpu_name(),
        isa=sf.isa(),
        threads=threads,
        l2=sum(sorted(caches(2, CPUS))[-threads:]) // threads,  # a few cores may share one
        l3=sum(sorted(caches(3, CPUS))[-threads:]),
        versions={"simdformer": sf.__version__, "numpy": np.__version__}
        | {name: found for name in LIBRARIES if (found := installed(name))}
        | {"Python": platform.python_version()},
    )


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def found_in(file: str, pattern: str) -> str:
    """What the first group of a pattern finds in a file of the system's; "" for nothing."""
    try:
        text = Path(file).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    found = re.search(pattern, text, re.M)
    return found[1].strip() if found else ""


def cpu_name() -> str:
    """As the system calls it."""
    name = found_in("/proc/cpuinfo", r"^model name\s*:\s*(\S.*)$")
    return name or platform.processor() or platform.machine()


def caches(level: int, folder: Path) -> list[int]:
    """Sizes of the data caches of one level that the CPUs of this process have.

    A cache that CPUs share is listed once.
    """
    found = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        for index in folder.glob(f"cpu{cpu}/cache/index*"):
            try:
                facts = {
                    name: (index / name).read_text().strip()
                    for name in ("level", "type", "size", "shared_cpu_list")
                }
            except OSError:
                continue
            size = re.fullmatch(r"(\d+)([KMG]?)", facts["size"])
            if facts["level"] == str(level) and facts["type"] != "Instruction" and size:
                scale = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[size[2]]
                found[facts["shared_cpu_list"]] = int(size[1]) * scale
    return list(found.values())


def free_memory() -> int:
    """Bytes that can be had without pushing anything out."""
    kilobytes = found_in("/proc/meminfo", r"^MemAvailable:\s*(\d+) kB$")
    if kilobytes:
        return int(kilobytes) << 10
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


# ---- its limits ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Level:
    """A place that data is read from. capacity None: all the memory there is."""

    name: str
    capacity: int | None
    gigabytes_per_second: float


@dataclass(frozen=True)
class Limits:
    """GFLOPS of float32 multiply-adds, and the read bandwidth of caches and memory, smallest first.

    >>> from simdformer.bench.machine import Level, Limits
    >>> limits = Limits(400.0, (Level("L2", 1 << 20, 200.0), Level("memory", None, 40.0)))
    >>> limits.level(1 << 10).name, limits.level(1 << 30).name
    ('L2', 'memory')
    """

    gflops: float
    levels: tuple[Level, ...]

    def level(self, nbytes: int) -> Level:
        """The fastest that so many bytes fit in, when they are used again and again."""
        return next(one for one in self.levels if one.capacity is None or nbytes <= one.capacity)

    def with_memory(self, rate: float) -> "Limits":
        """The same, but for the GB/s of memory."""
        *caches, memory = self.levels
        return replace(self, levels=(*caches, replace(memory, gigabytes_per_second=rate)))

    def arithmetic_share(self, work: Work, seconds: float) -> float:
        """The share of the multiply-adds possible meanwhile that were needed."""
        return work.flops / seconds / 1e9 / self.gflops

    def read_share(self, work: Work, seconds: float) -> float:
        """The share of the bytes that could have been read meanwhile that were needed."""
        return work.nbytes / seconds / 1e9 / self.level(work.nbytes).gigabytes_per_second

    def bound_by_arithmetic(self, work: Work) -> bool:
        """Whether its multiply-adds take longer than reading what it reads, at the limits."""
        return self.arithmetic_share(work, 1.0) > self.read_share(work, 1.0)

    def share(self, work: Work, seconds: float) -> float:
        """The share of whichever limit is nearer: 1 is as fast as the machine can."""
        return max(self.arithmetic_share(work, seconds), self.read_share(work, seconds))

    def __str__(self) -> str:
        """One line."""
        reads = ", ".join(
            f"{level.gigabytes_per_second:.0f} GB/s from {level.name}" for level in self.levels
        )
        return f"{self.gflops:.0f} GFLOPS in float32 multiply-adds, reads {reads}"


def measure_limits(machine: Machine, budget: float, stopwatch: Stopwatch) -> Limits:
    """Measures them within about `budget` seconds: arithmetic, then each level that there is."""
    places = read_places(machine, free_memory())
    share, levels = budget / (1 + len(places)), []
    for place in places:
        with sf.num_threads(1) if place.each > 1 else nullcontext():
            rate = place.each * read_rate(place.nbytes, share, stopwatch)
        levels.append(Level(place.name, place.capacity, rate / 1e9))
    return Limits(multiply_adds(share, stopwatch), tuple(levels))


@dataclass(frozen=True)
class Place:
    """How a level is measured: an array of `nbytes`, read by all threads, or by one of `each`."""

    name: str
    capacity: int | None
    nbytes: int
    each: int = 1


def read_places(machine: Machine, free: int) -> list[Place]:
    """Half of a cache is read, so that all of it stays there; of the memory more than fits into the
    caches, but at most a quarter of what is free.

    Every thread has an L2 of its own, so one is measured and counted for all. An L3 that is not
    clearly larger than these cannot be told from them and is left out.
    """
    l2 = machine.l2 * machine.threads
    places = []
    if l2:
        places.append(Place("L2", l2, machine.l2 // 2, each=machine.threads))
    if machine.l3 > 4 * l2:
        places.append(Place("L3", machine.l3, machine.l3 // 2))
    memory = max(LARGEST_READ, 4 * (l2 + machine.l3))
    return [*places, Place("memory", None, max(min(memory, free // 4), 1 << 20))]


def read_rate(nbytes: int, budget: float = 0.1, stopwatch: Stopwatch | None = None) -> float:
    """Bytes a second that all threads together read of an array of so many bytes, which is read
    again and again; the best time counts.

    >>> read_rate(1 << 20, budget=0.01) > 1e6
    True
    """
    array = np.ones(max(nbytes // 4, 1), np.float32)
    return array.nbytes / best_time(lambda: read_memory(array), budget, stopwatch)


def multiply_adds(budget: float, stopwatch: Stopwatch) -> float:
    """GFLOPS of the chains."""
    iterations = FIRST_ITERATIONS
    way = Way("fma", lambda: fma_chains(iterations), np.asarray)
    while stopwatch.sample(way, 1) < LONG_ENOUGH:
        iterations *= 2
    operations = fma_chains(iterations)
    return operations / best_time(way.call, budget, stopwatch) / 1e9


def best_time(
    call: Callable[[], object], budget: float, stopwatch: Stopwatch | None = None
) -> float:
    """Seconds of a call."""
    return compare({"limit": call}, budget, stopwatch)["limit"]
