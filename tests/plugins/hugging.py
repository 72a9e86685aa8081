"""Tiny random models of transformers for the tests of plug-ins."""

import torch
import transformers

from tiny_models import MODELS, SIZES

IDS = torch.randint(1, 96, (2, 20), generator=torch.Generator().manual_seed(1))
LEFT = torch.ones_like(IDS)  # 1 = text: the first sequence begins later
LEFT[0, :7] = 0
PADDINGS = {"none": None, "left": LEFT, "right": LEFT.flip(1)}


def made(name, dtype=torch.float32, **more):
    """A model of tests/tiny_models.py; larger weights than theirs, so that heads look at words."""
    kind, different = MODELS[name]
    config = transformers.AutoConfig.for_model(kind, **(SIZES | different | more))
    return random_weights(transformers.AutoModelForCausalLM, config, dtype)


def random_weights(kind, config, dtype=torch.float32):
    torch.manual_seed(0)
    model = kind.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(4)
    return model.to(dtype)


def with_attention(model, implementation, function):
    model.set_attn_implementation(implementation)
    with torch.inference_mode():
        return function(model)


def distance(got, expected):
    """The largest difference, in standard deviations of what is expected."""
    return float((got - expected).abs().max() / expected.std())
