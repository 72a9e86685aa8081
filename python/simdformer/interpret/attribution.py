"""Direct logit attribution: what every part of the model writes into the logits of one position."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from simdformer import backward
from simdformer.arguments import is_whole, shown
from simdformer.functional import embedding
from simdformer.interpret.subject import Subject, read_subject, read_target, token_text
from simdformer.models.observer import Edit
from simdformer.models.progress import Progress
from simdformer.models.trace import Trace
from simdformer.models.transformer import Transformer
from simdformer.types import Array

__all__ = ["Attribution", "attribute", "attribute_everywhere"]


@dataclass(frozen=True)
class Attribution:
    """What `attribute` gives: logits that add up.

    difference : float
        logit(target) - logit(against), before a softcap where the model has one; the sum of the
        parts but for rounding. Where logits have a softcap, those before it.
    embed, pos_embed : float
        What the embedding of this position's token writes, and that of the position (GPT-2; else
        0).
    heads : (layers,H)
        What each head writes, through its part of wo.
    mlps : (layers,)
    biases : (layers,)
        What the bias of wo writes; 0 where there is none.
    constant : float
        What the bias of the final LayerNorm writes; 0 where there is none.
    target, against : int, or None
        The ids. Without `against` it is the logit of the target alone.
    position : int
    """

    PARTS: ClassVar = (
        *("difference", "embed", "pos_embed", "heads", "mlps", "biases", "constant"),
    )

    difference: float
    embed: float
    pos_embed: float
    heads: Array
    mlps: Array
    biases: Array
    constant: float
    target: int
    against: int | None
    position: int
    label: str

    @property
    def parts(self) -> dict[str, float]:
        """Every part by name, in the order of computation: embed, layers.{i}.heads.{h}, ..."""
        parts = {"embed": self.embed}
        if self.pos_embed:
            parts["pos_embed"] = self.pos_embed
        for layer, heads in enumerate(self.heads):
            parts |= {f"layers.{layer}.heads.{head}": float(n) for head, n in enumerate(heads)}
            if self.biases[layer]:
                parts[f"layers.{layer}.attn.bias"] = float(self.biases[layer])
            parts[f"layers.{layer}.mlp"] = float(self.mlps[layer])
        if self.constant:
            parts["final_norm.bias"] = self.constant
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
    edit: Mapping[str, Edit] | None = None,
) -> Attribution:
    """What the embedding, each head and each MLP write into logit(target) - logit(against).

    The residual stream is a sum, and the lm_head is linear; only the final norm lies between (and,
    in Gemma and OLMo 2, one behind each attention). With their scales kept as they were in this
    run, every part has a share in the logits, and the shares add up to the difference. (A LayerNorm
    takes the mean from every part, which is linear.)
    Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits".

    Parameters
    ----------
    model : LanguageModel or Transformer
    text : str, or ids (L,)
    target, against : token
        Text of one token, or its id. Without `against` the logit of the target by itself.
    position : int
        Where it is said; -1 is the end of the text.
    edit : dict of name or glob -> array or function, optional
        Changes activations on their way, see `run_with_cache`.

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
    >>> text = "Mia has a red kite. Ben has a blue boat. What colour is the boat of Ben? It is"
    >>> parts = sf.attribute(model, text, " blue", " red")
    >>> abs(sum(parts.parts.values()) - parts.difference) < 1e-4 * abs(parts.difference)
    True
    """
    subject = read_subject("attribute", model, text)
    transformer, length = subject.transformer, len(subject.ids)
    if not is_whole(position, -length) or position >= length:
        raise IndexError(
            f"attribute: position is {shown(position)}, needs a number from {-length} to "
            f"{length - 1}"
        )
    at = position % length
    wanted = read_target(subject, "target", target)
    other = None if against is None else read_target(subject, "against", against)

    names = ["*embed", "layers.*.attn.z", "layers.*.mlp.out", "final_norm_scale", "final_norm"]
    _, trace = subject.run(names, edit)
    everything = shares_of(transformer, trace, [at], [wanted], other)
    word = repr(token_text(subject.tokenizer, wanted))
    label = f"logit of {word}"
    if other is not None:
        label += f" against {token_text(subject.tokenizer, other)!r}"
    return Attribution(
        difference=float(everything["difference"][0]),
        embed=float(everything["embed"][0]),
        pos_embed=float(everything["pos_embed"][0]),
        heads=everything["heads"][..., 0],
        mlps=everything["mlps"][..., 0],
        biases=everything["biases"][..., 0],
        constant=float(everything["constant"][0]),
        target=wanted,
        against=other,
        position=at,
        label=label,
    )


def attribute_everywhere(
    subject: Subject,
    said: Array,
    trace: Trace,
    target: Any,
    against: Any,
    before: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """`Attribution.PARTS` with an axis of positions behind, and the words that are meant; without a
    target it is what the model says at each position, the ids `said` (L,). `before` is the same of
    another run of the text, about the same words."""
    other = None if against is None else read_target(subject, "against", against)
    if target is None:
        wanted = said.tolist()
    else:
        wanted = [read_target(subject, "target", target)] * len(subject.ids)
    known = None if before is None else before["read"]
    everywhere = range(len(subject.ids))
    shares = shares_of(subject.transformer, trace, everywhere, wanted, other, known)
    words = {
        name: None if id is None else token_text(subject.tokenizer, id)
        for name, id in (("target", None if target is None else wanted[0]), ("against", other))
    }
    return {**shares, **words}


def shares_of(
    transformer: Transformer,
    trace: Mapping[str, Array],
    positions: Sequence[int],
    targets: Sequence[int],
    against: int | None,
    known: list[Array] | None = None,
) -> dict[str, Any]:
    """What each part writes into the logit of its target at each of n positions: heads
    (layers,H,n), mlps and biases (layers,n), the others (n,).

    `read`, which is `known` of another run of the text: for each layer (n,H,D), what the logit
    reads of attn.z, but for the scale of the final norm; empty where a norm lies between them.
    """
    transformer.require_whole("attribute")
    at, config = list(positions), transformer.config
    layers = range(config.num_layers)
    rows = rows_of_last_matrix(transformer, list(targets), against)  # (n,E)
    weight = np.asarray(transformer.weights.final_norm, np.float64)
    unscaled, scale = in_front(transformer, rows * weight), trace["final_norm_scale"][at]
    direction = unscaled / scale

    def written(name: str, direction: Array = direction) -> Array:
        parts: Array = np.einsum("ne,ne->n", trace[name][at], direction)
        return parts

    heads, biases, read = [], [], list(known or [])
    with Progress("attribution", len(layers), unit="layer") as progress:
        for layer in layers:
            weights, z = transformer.weights.layers[layer], trace[f"layers.{layer}.attn.z"][at]
            bias = 0 if weights.wo_bias is None else np.asarray(weights.wo_bias, np.float64)
            inner = config.residual_scale * direction
            behind = written_by(weights.attn_out_norm_bias, inner)
            if weights.attn_out_norm is None:
                if len(read) == layer:
                    read.append(
                        config.residual_scale * read_of(transformer, z, unscaled, weights.wo)
                    )
                of_heads = np.einsum("nhd,nhd->hn", z, read[layer]) / scale[:, 0]
            else:
                out = transformer.linear(z.reshape(len(at), -1), weights.wo) + bias
                inner = through_norm(transformer, inner, out, weights.attn_out_norm)
                of_heads = np.einsum("nhd,nhd->hn", z, read_of(transformer, z, inner, weights.wo))
            heads.append(of_heads)
            biases.append(written_by(weights.wo_bias, inner) + behind)
            progress.advance(1)
    has_positions = transformer.config.positions == "learned"
    return {
        "difference": written("final_norm", rows),
        "embed": written("embed"),
        "pos_embed": written("pos_embed") if has_positions else np.zeros(len(at)),
        "heads": np.stack(heads),
        "mlps": np.stack([written(f"layers.{layer}.mlp.out") for layer in layers]),
        "biases": np.stack(biases),
        "constant": written_by(transformer.weights.final_norm_bias, rows),
        "read": read,
    }


def read_of(transformer: Transformer, z: Array, rows: Array, wo: Any) -> Array:
    """rows (n,E) of what attention writes -> (n,H,D) of z, through wo (E,H·D)."""
    dtype = np.promote_types(transformer.activations, np.float32)
    x = z.reshape(len(z), -1).astype(dtype, copy=False)
    weight = wo.unpack() if transformer.adapters else wo
    found: Array = backward.linear(rows.astype(dtype), x, weight, needs=("x",)).x
    return found.reshape(z.shape)


def written_by(bias: Array | None, rows: Array) -> Array:
    """(n,): what a vector writes in the directions (n,E); 0 where the model has none."""
    return np.zeros(len(rows)) if bias is None else rows @ np.asarray(bias, np.float64)


def rows_of_last_matrix(transformer: Transformer, targets: list[int], against: int | None) -> Array:
    """(n,E): what the final norm's output is multiplied with to be the logit, before a softcap."""
    table = transformer.weights.lm_head
    rows = embedding(targets, table, dtype=np.float64)
    if against is not None:
        rows = rows - embedding(against, table, dtype=np.float64)
    return rows / transformer.config.logit_divisor


def through_norm(transformer: Transformer, rows: Array, x: Array, weight: Array) -> Array:
    """rows (n,E) of what follows a norm of x (n,E) -> (n,E) of what is in front of it, with the
    norm's scale as it is for x."""
    wide = in_front(transformer, x.astype(np.float64))
    scale = np.sqrt(np.mean(wide * wide, -1, keepdims=True) + transformer.config.norm_eps)
    before: Array = in_front(transformer, rows * np.asarray(weight, np.float64)) / scale
    return before


def in_front(transformer: Transformer, rows: Array) -> Array:
    """rows (n,E) of what has been divided by a norm's scale -> (n,E) of what comes in: a LayerNorm
    takes the mean away first, which is its own transpose."""
    if transformer.config.norm == "rms_norm":
        return rows
    centred: Array = rows - rows.mean(-1, keepdims=True)
    return centred
