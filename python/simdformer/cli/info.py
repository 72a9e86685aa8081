"""`simdformer info`: how the library is set up, or what a checkpoint holds."""

import argparse
from dataclasses import fields
from typing import Any

import simdformer as sf
from simdformer.checkpoints import Checkpoint, read_checkpoint
from simdformer.checkpoints.locate import locate
from simdformer.cli import _output as output
from simdformer.cli import _shared as shared
from simdformer.models import ModelConfig
from simdformer.models.budget import (
    active_parameters,
    cache_bytes,
    kinds_by_part,
    parameter_budget,
    weight_bytes,
)
from simdformer.text.pretrained import find_tokenizer

__all__ = ["add"]


def add(commands: "shared.Commands") -> None:
    parser = shared.command(
        commands,
        "info",
        run,
        arguments="[MODEL]",
        help="how the library is set up, or the config of a model",
        description="Without MODEL: version, instruction sets and threads. With MODEL: its config, "
        "how many parameters each part has, and the memory it will take.",
    )
    shared.add_model(parser, otherwise="show the library")
    shared.add_format(parser)


def run(options: argparse.Namespace) -> int:
    if options.model is None:
        sf.show_config()
        return 0
    checkpoint = read_checkpoint(locate(options.model), options.format)
    config = checkpoint.config
    rows = {"format": checkpoint.format} | fields_of(config)
    rows["tokenizer"] = tokenizer_of(checkpoint)
    rows["end of text"] = ", ".join(map(str, checkpoint.eos_ids)) or "as the tokenizer says"
    budget = parameter_budget(config)
    total = sum(budget.values())
    kinds = kinds_by_part(config, checkpoint.weights)
    for part, parameters in budget.items():
        share = f"{parameters:,} parameters, {parameters / total:.1%}"
        rows[part] = ", ".join([share, " and ".join(kinds[part])] if part in kinds else [share])
    active = f", {active_parameters(config):,} of them for a token" if config.num_experts else ""
    rows["all"] = f"{total:,} parameters{active}"
    nbytes = weight_bytes(config, checkpoint.weights, None)
    each = f"{8 * nbytes / total:.3g} bits a parameter"
    rows["weights"] = f"{output.memory(nbytes)} in memory, {each}"
    per_id, full = (cache_bytes(config, length, 4) for length in (1, config.max_seq_len))
    rows["KV cache"] = (
        f"{output.memory(full)} in float32 ({output.memory(per_id)} an id), half of it in 16 bits"
    )
    for name, value in rows.items():
        print(f"{name:<18} {value}")
    return 0


def fields_of(config: ModelConfig) -> dict[str, Any]:
    """The sizes, and the switches that make it differ from Llama."""
    found = {field: getattr(config, field.name) for field in fields(config)}
    told = {field.name: value for field, value in found.items() if value != field.default}
    without = () if config.positions == "rope" else ("rope_theta", "rope_layout")
    return {name: value for name, value in told.items() if name not in without}


def tokenizer_of(checkpoint: Checkpoint) -> str:
    try:
        tokenizer = find_tokenizer(checkpoint)
    except ImportError as error:  # the rest can be told without the package
        return output.describe(error)
    return f"{tokenizer.vocab_size} tokens" if tokenizer else "none found"
