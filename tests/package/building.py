"""What the tests of builds share: where the project lies, processes, the headers not installed."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = ("xsimd", "xtl", "xtensor")
NOT_INSTALLED = [f"cmake.define.CMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in LIBRARIES]
UNREACHABLE = "cmake.define.SIMDFORMER_MIRROR=http://127.0.0.1:9"  # nobody listens on port 9


def run(*command: object, cwd: Path | None = None, env: dict[str, str] | None = None):
    """The finished process; what it said, on both channels, is in stdout."""
    scripts = f"{Path(sys.executable).parent}{os.pathsep}"
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "CMAKE_ARGS")}
    environment |= {"PATH": scripts + os.environ["PATH"], "CMAKE_BUILD_PARALLEL_LEVEL": "2"}
    return subprocess.run(
        [str(c) for c in command],
        cwd=cwd,
        env=environment | (env or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def assert_one_clear_message(said: str) -> None:
    """That all three libraries are missing, why, and what to do about it."""
    assert said.count("CMake Error at") == 1
    said = " ".join(said.split())
    for part in (
        "simdformer needs C++ header libraries that were not found: xsimd, xtl, xtensor",
        "xsimd (at least 8.1, below 15): not installed; downloading http://127.0.0.1:9/xsimd/",
        "xtl (at least 0.7, below 0.9): not installed; downloads do not work here",
        "sudo apt-get install libxsimd-dev libxtensor-dev",
        "pip install . " + " ".join(f"-C cmake.define.{name}_ROOT=DIR" for name in LIBRARIES),
    ):
        assert part in said
