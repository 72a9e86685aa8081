"""Tiny models of transformers in float64, their files, and their gradients under our names."""

import copy

import torch

import tiny_models
from simdformer.checkpoints import read_checkpoint
from simdformer.checkpoints.locate import locate
from simdformer.models.weights import arrays_of


def is_dense(name):
    kind, own = tiny_models.MODELS[name]
    return kind != "gpt_oss" and "moe" not in kind and not any("expert" in key for key in own)


DENSE = [name for name in tiny_models.MODELS if is_dense(name)]
MIXED = [name for name in tiny_models.MODELS if not is_dense(name)]


def made(name, folder):
    """A model of transformers in float64, and its files."""
    model = tiny_models.make(name)
    model.config._attn_implementation = "eager"
    model.config._experts_implementation = "eager"  # grouped products have no float64
    model.save_pretrained(folder)
    return model.double()


def gradients_by_our_names(model, folder):
    """What a parameter is called in a file, its gradient is too: read as a checkpoint, fused and
    transposed matrices come apart as weights do."""
    kept = [parameter.grad for parameter in model.parameters()]
    model = copy.deepcopy(model)
    with torch.no_grad():
        for parameter, gradient in zip(model.parameters(), kept, strict=True):
            parameter.copy_(gradient)
    model.float().save_pretrained(folder)
    return arrays_of(read_checkpoint(locate(folder), None, None).weights)
