"""What lies beside Hugging Face's weights for text: the tokenizer's files, what its config says,
and the chat template."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simdformer.arguments import shown
from simdformer.checkpoints.checkpoint import Checkpoint, StoredTemplate
from simdformer.checkpoints.error import CheckpointError
from simdformer.checkpoints.files import read_object, read_text

__all__ = [
    "TokenizerConfig",
    "chat_template",
    "read_tokenizer_config",
    "template_beside",
    "tokenizer_files",
]

CONFIG = "tokenizer_config.json"
MAX_TEMPLATE = 1 << 20  # bytes; published templates have up to 20 kB


@dataclass(frozen=True)
class TokenizerConfig:
    """What files say about a tokenizer, and which of them says it."""

    fields: Mapping[str, Any]
    files: Mapping[str, Path]

    def get(self, name: str) -> Any:
        return self.fields.get(name)

    def or_else(self, name: str, value: Any) -> "TokenizerConfig":
        """The same with a value where no file has one."""
        return replace(self, fields={name: value} | dict(self.fields))

    def token(self, name: str) -> str | None:
        """The text of bos_token or its like: a string, or an object with `content`."""
        value = self.get(name)
        text = token_text(value)
        if value is not None and text is None:
            raise self.wrong(name, 'text, or an object with text as "content"')
        return text

    def switch(self, name: str) -> bool | None:
        value = self.get(name)
        if not isinstance(value, bool | None):
            raise self.wrong(name, "true or false")
        return value

    def wrong(self, name: str, needed: str) -> CheckpointError:
        """That a value makes no sense."""
        return CheckpointError(
            f"{name} = {shown(self.get(name))}", needed, file=self.files.get(name)
        )


def read_tokenizer_config(directory: Path) -> TokenizerConfig:
    """tokenizer_config.json, and of special_tokens_map.json what that leaves open."""
    fields: dict[str, Any] = {}
    files: dict[str, Path] = {}
    for file in (directory / "special_tokens_map.json", directory / CONFIG):
        if file.exists():
            read = read_object(file)
            fields |= read
            files |= dict.fromkeys(read, file)
    return TokenizerConfig(fields, files)


def tokenizer_files(checkpoint: Checkpoint) -> list[Path]:
    """tokenizer.json, or vocab.json with its merges.txt, or tokenizer.model."""
    path = checkpoint.path
    folder = path if path.is_dir() else path.parent
    names = ["tokenizer.json", "tokenizer.model"]
    if (folder / "merges.txt").exists():
        names.insert(1, "vocab.json")
    return [folder / name for name in names if (folder / name).exists()]


def chat_template(checkpoint: Checkpoint) -> StoredTemplate | None:
    return template_beside(checkpoint.path)


def template_beside(path: Path) -> StoredTemplate | None:
    """chat_template.jinja, or the one in tokenizer_config.json (of several the one named
    "default"), or chat_template.json, in a folder or beside a file of it."""
    folder = path if path.is_dir() else path.parent
    config = read_tokenizer_config(folder)
    names = (name for name in config.fields if name.endswith("_token"))
    tokens = {name: text for name in names if (text := token_text(config.get(name))) is not None}
    file = folder / "chat_template.jinja"
    if file.exists():
        return StoredTemplate(read_text(file, MAX_TEMPLATE), file, tokens)
    file, template = folder / CONFIG, config.get("chat_template")
    if template is None and (folder / "chat_template.json").exists():
        file = folder / "chat_template.json"
        template = read_object(file).get("chat_template")
    if template is None:
        return None
    return StoredTemplate(default_template(template, file), file, tokens)


def default_template(template: Any, file: Path) -> str:
    """A template, or of a list of {"name", "template"} the one named "default"."""
    if isinstance(template, list):
        named = {
            entry.get("name"): entry.get("template")
            for entry in template
            if isinstance(entry, dict) and isinstance(entry.get("name"), str)
        }
        template = named.get("default")
    if not isinstance(template, str) or len(template) > MAX_TEMPLATE:
        raise CheckpointError(
            f"chat_template = {shown(template)}",
            f'text of at most {MAX_TEMPLATE} characters, or a list of {{"name": ..., '
            '"template": ...} with one named "default"',
            file=file,
        )
    return template


def token_text(value: Any) -> str | None:
    """The text of a token, given as such or as an object with `content`; None for anything else."""
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) else None
