"""Reader of MiniMind's checkpoints: a state dict under Hugging Face's names in a `.pth` file, whose
`config.json` lies beside it or is given."""

from pathlib import Path

from simdformer.checkpoints import huggingface_text
from simdformer.checkpoints.checkpoint import Checkpoint, ConfigSource, Format
from simdformer.checkpoints.error import CheckpointError
from simdformer.checkpoints.files import begins_with, only
from simdformer.checkpoints.huggingface import CONFIG, make_checkpoint, read_config
from simdformer.checkpoints.torch_file import read_tensors

__all__ = ["MINIMIND"]

ZIP = b"PK\x03\x04"


def candidates(directory: Path) -> list[Path]:
    """The .pth files that config.json describes; Meta's shards are others."""
    if not (directory / CONFIG).exists():
        return []
    return sorted(
        file for file in directory.glob("*.pth") if not file.name.startswith("consolidated.")
    )


def found_in(directory: Path) -> bool:
    return bool(candidates(directory))


def has_file(file: Path) -> bool:
    """By its name, or by its first bytes."""
    return file.suffix in (".pth", ".pt") or begins_with(file, ZIP)


def read(path: Path, config: ConfigSource) -> Checkpoint:
    """The state dict at `path`, or the only .pth file of that directory, with its config."""
    if path.is_dir():
        names = [file.name for file in candidates(path)]
        path = path / only(path, f".pth files beside a {CONFIG}", names, "one")
    if config is None and not (path.parent / CONFIG).exists():
        raise CheckpointError(
            f"no {CONFIG} beside it",
            "one, or config=, because the number of heads does not follow from the tensors",
            file=path,
        )
    name, found = read_config(path.parent, config)
    return make_checkpoint(MINIMIND, path, name, found, read_tensors(path), path)


MINIMIND = Format(
    name="minimind",
    files="config.json with a .pth (MiniMind)",
    found_in=found_in,
    has_file=has_file,
    read=read,
    takes_config=True,
    tokenizer_files=huggingface_text.tokenizer_files,
    chat_template=huggingface_text.chat_template,
)
