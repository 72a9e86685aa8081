"""The machine that is measured: CPU, caches, instruction set, threads, versions."""

import os
import platform
import re
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

import simdformer as sf

__all__ = ["Machine", "free_memory", "this_machine"]

CPUS = Path("/sys/devices/system/cpu")
LIBRARIES = (
    "torch",
    "onnxruntime",
    "transformers",
    "llama-cpp-python",
)  # whose versions matter, when installed


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

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def this_machine() -> Machine:
    """As it is set up now: `sf.isa()`, `sf.get_num_threads()`.

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


def cpu_name() -> str:
    """As the system calls it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(\S.*)$", text, re.M)
    return found[1].strip() if found else platform.processor() or platform.machine()


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
    try:
        text = Path("/proc/meminfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    found = re.search(r"^MemAvailable:\s*(\d+) kB$", text, re.M)
    if found:
        return int(found[1]) << 10
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
