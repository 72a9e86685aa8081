"""Names that stand for a checkpoint: `demo`, and `Owner/Name` of the Hugging Face hub.

Nothing is ever downloaded. Only the hub's cache on this machine is looked at:
models--Owner--Name/refs/main holds the name of a directory in models--Owner--Name/snapshots.
"""

import errno
import os
import re
from pathlib import Path

from simdformer.data import demo_path

__all__ = ["locate"]

DEMO = "demo"
HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
BARE_NAME = re.compile(r"\w[\w.-]*", re.ASCII)
FILES = (".bin", ".gguf", ".json", ".model", ".pt", ".pth", ".safetensors")  # ends of their names
ADAPTER_IS = (
    "; an adapter is a directory with adapter_config.json, as `simdformer train --lora` and the "
    "package peft write it"
)
COMMIT = re.compile(r"[0-9a-f]{40}")


def locate(model: str | os.PathLike[str], *, adapter: bool = False) -> Path:
    """The path that is meant: a path that exists means itself, and so does everything but a str.

    FileNotFoundError for a name that is in no cache says what a model or an adapter may be, and how
    to get one.
    """
    path = Path(model)
    if not isinstance(model, str) or path.exists():
        return path
    if model == DEMO:
        return demo_path()
    # Where there is such a directory, Owner/Name is a file that is missing in it.
    if HUB_NAME.fullmatch(model) and not path.parent.exists():
        return cached(model)
    if BARE_NAME.fullmatch(model) and path.suffix not in FILES:
        what = ADAPTER_IS if adapter else without_owner(model)
        raise FileNotFoundError(errno.ENOENT, f"no such file or directory{what}", model)
    return path


def without_owner(name: str) -> str:
    """What is said about a name that is neither a path nor has an owner."""
    owners = sorted(found.name.split("--")[1] for found in hub_cache().glob(f"models--*--{name}"))
    meant = f"; did you mean {owners[0]}/{name}, which is in the hub's cache" if owners else ""
    return (
        f"{meant}; a model is the path of a checkpoint, {DEMO!r}, or "
        "Owner/Name on the Hugging Face hub (openai-community/gpt2), which opens here after "
        "`hf download Owner/Name` (of the package huggingface_hub)"
    )


def cached(name: str) -> Path:
    """The directory of a model in the hub's cache."""
    model = hub_cache() / f"models--{name.replace('/', '--')}"
    reference = model / "refs" / "main"
    commit = reference.read_text().strip() if reference.is_file() else ""
    snapshot = model / "snapshots" / commit
    if COMMIT.fullmatch(commit) and snapshot.is_dir():
        return snapshot
    raise FileNotFoundError(
        errno.ENOENT,
        "no such file or directory, and no such model in the cache of the Hugging Face hub, "
        f"{hub_cache()}; `hf download {name}` (of the package huggingface_hub) brings it there, "
        "and this name then opens it",
        name,
    )


def hub_cache() -> Path:
    """Where the package huggingface_hub keeps what it has downloaded."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or os.path.join(home, "huggingface")
    cache = os.environ.get("HUGGINGFACE_HUB_CACHE") or os.path.join(home, "hub")
    return Path(os.path.expandvars(os.environ.get("HF_HUB_CACHE") or cache)).expanduser()
