"""What the loss asks for: its gradients by what heads and MLPs give."""

from collections.abc import Mapping

import numpy as np

from simdformer.interpret.subject import Subject
from simdformer.models.activation_table import Activation, activation_of
from simdformer.models.trace import Trace
from simdformer.types import Array

__all__ = ["by_position", "loss_by_part", "root_mean_square"]


def loss_by_part(
    subject: Subject, trace: Trace
) -> tuple[float, dict[str, Array], dict[str, Array]]:
    """The mean loss of each token's successor, in nats, and of each head (layers,H) and each MLP
    (layers,): the norm of its gradient by attn.z and by mlp.out over the text; and, to first order,
    the change of the loss where that activation becomes 0: minus the sum of activation · gradient.
    Then the root mean square (L,) of the gradient by each activation of a layer.

    ValueError: a text of one token has no successor.
    """
    if len(subject.ids) < 2:
        raise ValueError(
            f"{subject.function}: text has 1 token, needs at least 2, because the loss is that of "
            "the next tokens; write more"
        )
    gradients: dict[str, Array] = {}
    sizes: dict[str, Array] = {}

    def see(name: str, gradient: Array) -> None:
        row = activation_of(subject.transformer.config, name)
        if row is not None and row.in_layer:
            sizes[name] = root_mean_square(by_position(row, gradient[0]))
        if name.endswith((".attn.z", ".resid_post")):
            gradients[name] = gradient[0].copy()

    loss, _ = subject.trainable.loss_and_gradients(subject.ids, see=see)

    def stacked(found: Mapping[str, Array], name: str) -> Array:
        layers = range(subject.transformer.config.num_layers)
        return np.stack([found[f"layers.{layer}.{name}"] for layer in layers]).astype(np.float64)

    # mlp.out is added to the stream as it is: their gradients are the same
    by_z, by_out = stacked(gradients, "attn.z"), stacked(gradients, "resid_post")
    z, out = stacked(trace, "attn.z"), stacked(trace, "mlp.out")
    parts = {
        "head_sizes": np.sqrt(np.einsum("nlhd,nlhd->nh", by_z, by_z)),
        "mlp_sizes": np.sqrt(np.einsum("nle,nle->n", by_out, by_out)),
        "without_heads": -np.einsum("nlhd,nlhd->nh", by_z, z),
        "without_mlps": -np.einsum("nle,nle->n", by_out, out),
    }
    return loss, parts, sizes


def by_position(row: Activation, array: Array) -> Array:
    """An activation of a text, or its gradient -> (L,n)"""
    at = row.axes.index("L")
    rows: Array = np.moveaxis(array, at, 0).reshape(array.shape[at], -1)
    return rows


def root_mean_square(rows: Array) -> Array:
    """The root mean square of each row's finite numbers."""
    squares = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
    counts = np.full(len(rows), rows.shape[-1])
    if not np.isfinite(squares).all():
        finite = np.isfinite(rows)
        seen, counts = np.where(finite, rows, 0), np.maximum(finite.sum(-1), 1)
        squares = np.einsum("ij,ij->i", seen, seen, dtype=np.float64)
    mean: Array = squares / counts
    return np.sqrt(mean)
