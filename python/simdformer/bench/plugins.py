"""What our plug-ins bring to a model of transformers: `simdformer bench --transformers`.

One model, the same weights, by turns as PyTorch computes it ("eager", "sdpa"), with our attention
(`simdformer.transformers.register`), and accelerated (`simdformer.torch.accelerate`), which is what
counts as ours.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from simdformer.bench import transformers
from simdformer.bench.contestants import EAGER, OURS, REGISTERED, SDPA, Contestant, Missing
from simdformer.bench.models import SHAPES, ModelRun, made
from simdformer.bench.work import Case, Dtype, Inputs, times

__all__ = ["PluginRun", "plugin_cases"]


def plugin_cases() -> Iterator[Case]:
    """A prompt of 512 ids and a step of decoding of each shape, in bfloat16 as transformers is."""
    for shape, config in SHAPES.items():
        prompt = PluginRun(config=config, new=512, dtype="bfloat16")
        yield Case(f"{shape}/transformers/prefill", prompt, (times(1.0, EAGER, SDPA),))
        step = PluginRun(config=config, new=1, in_cache=64, dtype="bfloat16")
        yield Case(f"{shape}/transformers/decode", step, (times(2.5, EAGER, SDPA),))


@dataclass(frozen=True, kw_only=True)
class PluginRun(ModelRun):
    """The same, all of it inside of transformers."""

    peers: ClassVar[tuple[str, ...]] = (EAGER, SDPA, REGISTERED)
    dtype: Dtype = "bfloat16"

    def contestants(self, inputs: Inputs) -> list[Contestant | Missing]:
        if missing := transformers.missing():
            return [replace(missing, name=name) for name in (OURS, EAGER, SDPA, REGISTERED)]

        def contestant(name: str) -> Contestant:
            model = made(f"{name}, in transformers", self.model, lambda: loaded(name, inputs))
            few = self.checked_ids(inputs)
            found = transformers.contestant(model, inputs["ids"], self.in_cache, few)
            return replace(found, name=name, peer=name != REGISTERED)

        return [contestant(name) for name in (OURS, EAGER, SDPA, REGISTERED)]


def loaded(name: str, inputs: Inputs) -> Any:
    """A model of its own over the weights of all; ours also has packed ones."""
    from simdformer.torch import accelerate
    from simdformer.transformers import NAME, register

    register()
    model = transformers.model_of(inputs["config"], inputs["weights"])
    model.set_attn_implementation({EAGER: "eager", SDPA: "sdpa"}.get(name, NAME))
    if name == OURS:
        accelerate(model)
    return model
