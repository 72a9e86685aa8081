"""Direct logit attribution: what every part of the model writes into the logits of one position."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from simdformer.arguments import is_whole, shown
from simdformer.interpret.subject import Subject, read_subject, read_target, token_text
from simdformer.models.trace import Trace
from simdformer.models.transformer import Transformer
from simdformer.types import Array

__all__ = ["Attribution", "attribute", "attribute_everywhere"]


@dataclass(frozen=True)
class Attribution:
    """What `attribute` gives: logits that add up.

    difference : float
        logit(target) - logit(against), as the model computed it; the sum of the parts but for
        rounding. Where logits have a softcap, those before it.
    embed : float
        What the embedding of this position's token writes.
    heads : (layers,H)
        What each head writes, through its part of wo.
    mlps : (layers,)
    biases : (layers,)
        What the bias of wo writes; 0 where there is none.
    target, against : int, or None
        The ids. Without `against` it is the logit of the target alone.
    position : int
    """

    PARTS: ClassVar = ("difference", "embed", "heads", "mlps", "biases")

    difference: float
    embed: float
    heads: Array
    mlps: Array
    biases: Array
    target: int
    against: int | None
    position: int
    label: str

    @property
    def parts(self) -> dict[str, float]:
        """Every part by name, in the order of computation: embed, layers.{i}.heads.{h}, ..."""
        parts = {"embed": self.embed}
        for layer, heads in enumerate(self.heads):
            parts |= {f"layers.{layer}.heads.{head}": float(n) for head, n in enumerate(heads)}
            if self.biases[layer]:
                parts[f"layers.{layer}.attn.bias"] = float(self.biases[layer])
            parts[f"layers.{layer}.mlp"] = float(self.mlps[layer])
        return parts

    def __repr__(self) -> str:
        """The ten parts that matter most."""
        parts = self.parts
        order = sorted(parts, key=lambda name: -abs(parts[name]))[:10]
        width = max(map(len, order))
        lines = [f"{self.label} = {self.difference:+.3f} at position {self.position}"]
        lines += [f"  {name:<{width}}  {parts[name]:+.3f}" for name in order]
        rest = self.difference - sum(parts[name] for name in order)
        return "\n".join([*lines, f"  {'all others':<{width}}  {rest:+.3f}"])


def attribute(
    model: Any,
    text: Any,
    target: str | int,
    against: str | int | None = None,
    *,
    position: int = -1,
) -> Attribution:
    """What the embedding, each head and each MLP write into logit(target) - logit(against).

    The residual stream is a sum, and the lm_head is linear; only the final norm lies between. With
    its scale kept as it was in this run, every part has a share in the logits, and the shares add
    up to the difference. Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits".

    Parameters
    ----------
    model : LanguageModel or Transformer
    text : str, or ids (L,)
    target, against : token
        Text of one token, or its id. Without `against` the logit of the target by itself.
    position : int
        Where it is said; -1 is the end of the text.

    Returns
    -------
    Attribution

    Raises
    ------
    IndexError
        No such position, no such id.
    ValueError, TypeError
        A target that is not one token, text without a tokenizer.

    >>> import simdformer as sf
    >>> model = sf.from_pretrained(sf.demo_path())
    >>> text = "Mia has a red kite. Tom has a blue boat. What colour is the boat of Tom? It is"
    >>> parts = sf.attribute(model, text, " blue", " red")
    >>> abs(sum(parts.parts.values()) - parts.difference) < 1e-4 * abs(parts.difference)
    True
    """
    subject = read_subject("attribute", model, text)
    transformer, length = subject.transformer, len(subject.ids)
    if not is_whole(position, -length) or position >= length:
        raise IndexError(
            f"attribute: position is {shown(position)}, needed is a number from {-length} to "
            f"{length - 1}"
        )
    at = position % length
    wanted = read_target(subject, "target", target)
    other = None if against is None else read_target(subject, "against", against)

    names = ["embed", "layers.*.attn.z", "layers.*.mlp.out"]
    last = f"layers.{transformer.config.num_layers - 1}.resid_post"
    logits, trace = transformer.run_with_cache(subject.ids, [*names, last])
    everything = shares_of(transformer, logits, trace, [at], [wanted], other)
    word = repr(token_text(subject.tokenizer, wanted))
    label = f"logit of {word}"
    if other is not None:
        label += f" against {token_text(subject.tokenizer, other)!r}"
    return Attribution(
        difference=float(everything["difference"][0]),
        embed=float(everything["embed"][0]),
        heads=everything["heads"][..., 0],
        mlps=everything["mlps"][..., 0],
        biases=everything["biases"][..., 0],
        target=wanted,
        against=other,
        position=at,
        label=label,
    )


def attribute_everywhere(
    subject: Subject, logits: Array, trace: Trace, target: Any, against: Any
) -> dict[str, Any]:
    """`Attribution.PARTS` with an axis of positions behind, and the words that are meant."""
    other = None if against is None else read_target(subject, "against", against)
    if target is None:
        wanted = logits.argmax(-1).tolist()
    else:
        wanted = [read_target(subject, "target", target)] * len(subject.ids)
    shares = shares_of(subject.transformer, logits, trace, range(len(subject.ids)), wanted, other)
    words = {
        name: None if id is None else token_text(subject.tokenizer, id)
        for name, id in (("target", None if target is None else wanted[0]), ("against", other))
    }
    return {**shares, **words}


def shares_of(
    transformer: Transformer,
    logits: Array,
    trace: Mapping[str, Array],
    positions: Sequence[int],
    targets: Sequence[int],
    against: int | None,
) -> dict[str, Array]:
    """What each part writes into the logit of its target at each of n positions: embed (n,), heads
    (layers,H,n), mlps and biases (layers,n), and the difference of logits itself (n,)."""
    at, wanted = list(positions), list(targets)
    config, layers = transformer.config, range(transformer.config.num_layers)
    stream = trace[f"layers.{config.num_layers - 1}.resid_post"][at]
    direction = through_final_norm(transformer, stream, wanted, against)  # (n,E)

    def written(name: str) -> Array:
        parts: Array = np.einsum("ne,ne->n", trace[name][at], direction)
        return parts

    heads, biases = [], []
    for layer in layers:
        wo = np.asarray(transformer.weights.layers[layer].wo.unpack(), np.float64)  # (E, H·D)
        z = trace[f"layers.{layer}.attn.z"][at]  # (n,H,D)
        into_out = direction * to_the_stream(transformer, layer, z.reshape(len(at), -1) @ wo.T)
        into_z = (into_out @ wo).reshape(z.shape)
        heads.append(np.einsum("nhd,nhd->hn", z, into_z))
        biases.append(into_out @ bias_of(transformer, layer))
    if config.logit_softcap is not None:
        difference = np.einsum("ne,ne->n", stream, direction)
    else:
        said = logits[at, wanted].astype(np.float64)
        difference = said if against is None else said - logits[at, against]
    return {
        "difference": difference,
        "embed": written("embed"),
        "heads": np.stack(heads),
        "mlps": np.stack([written(f"layers.{layer}.mlp.out") for layer in layers]),
        "biases": np.stack(biases),
    }


def through_final_norm(
    transformer: Transformer, stream: Array, targets: list[int], against: int | None
) -> Array:
    """stream (n,E) behind the last layer -> (n,E): a part times this, summed up, is its share."""
    weights = transformer.weights
    table = weights.embed if transformer.config.tie_embeddings else weights.lm_head.unpack()
    rows = np.asarray(table[targets], np.float64)
    if against is not None:
        rows = rows - np.asarray(table[against], np.float64)
    x = stream.astype(np.float64)
    scale = 1 / np.sqrt(np.mean(x * x, -1, keepdims=True) + transformer.config.norm_eps)
    direction: Array = rows * np.asarray(weights.final_norm, np.float64) * scale
    direction /= transformer.config.logit_divisor
    return direction


def to_the_stream(transformer: Transformer, layer: int, written: Array) -> Array:
    """What all heads write (n,E), without the bias -> (n,E) or a number: what it is multiplied by
    on its way into the residual stream, the scale of a norm kept as it was."""
    config, weight = transformer.config, transformer.weights.layers[layer].attn_out_norm
    if weight is None:
        return np.asarray(config.residual_scale)
    out = written + bias_of(transformer, layer)
    scale = 1 / np.sqrt(np.mean(out * out, -1, keepdims=True) + config.norm_eps)
    return np.asarray(weight * scale * config.residual_scale)


def bias_of(transformer: Transformer, layer: int) -> Array:
    bias = transformer.weights.layers[layer].wo_bias
    if bias is None:
        return np.zeros(transformer.config.hidden_size)
    return np.asarray(bias, np.float64)
