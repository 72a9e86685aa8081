"""Every activation of a forward pass, once: its name, its axes, what it is computed from, which
models have it, and what TransformerLens calls it. Traces, edits, `check_trace`, patching and the
page read these tables.

Axes are letters, as in transformer.py, without that of the batch: L positions, S positions of keys,
E hidden_size, H heads, K key/value heads, D head_dim, I, M and J the inner widths of the MLP, of an
expert and of the MLP beside experts, X experts, k of them a position, V vocabulary, 1 one number.
"""

from dataclasses import dataclass
from functools import cache

from simdformer.models.config import ModelConfig
from simdformer.models.table import AXES, features, rows_of

__all__ = [
    "Activation",
    "activation_of",
    "activations",
    "every_activation",
    "layer_and_short_name",
    "layer_of",
    "sources_of",
    "trace_names",
]

# name | axes | computed from | what the model needs; marks | TransformerLens' name
#   on request   in a trace only where a name asks for it
#   untraced     a step that a learner may have, and no trace has
#   skipped      a model that lacks it reads its source instead
#   by expert    of a model that several ranks hold, each has that of its own experts, 0 elsewhere
#   added        each rank has what it adds to a sum; all others, its part along H, K, I or J
BEFORE_LAYERS = """
embed                | LE  |                        |                   | hook_embed
pos_embed            | LE  |                        | learned positions | hook_pos_embed
"""
ATTENTION = """
resid_pre            | LE  |                        |                   | hook_resid_pre
attn_norm            | LE  | resid_pre              | norms before; skipped | ln1.hook_normalized
attn.q               | LHD | attn_norm              |                   | attn.hook_q
attn.k               | LKD | attn_norm              |                   | attn.hook_k
attn.v               | LKD | attn_norm              |                   | attn.hook_v
attn.q_normed        | LHD | attn.q                 | qk norms; skipped |
attn.k_normed        | LKD | attn.k                 | qk norms; skipped |
attn.q_rot           | LHD | attn.q_normed          |                   | attn.hook_rot_q
attn.k_rot           | LKD | attn.k_normed          |                   | attn.hook_rot_k
attn.scores_unmasked | HLS | attn.q_rot, attn.k_rot | ; untraced        |
attn.scores          | HLS | attn.scores_unmasked   |                   | attn.hook_attn_scores
attn.pattern         | HLS | attn.scores            |                   | attn.hook_pattern
attn.z               | LHD | attn.pattern, attn.v   |                   | attn.hook_z
attn.result          | LHE | attn.z                 | ; on request      | attn.hook_result
attn.out             | LE  | attn.z                 |                   | hook_attn_out
resid_mid            | LE  | resid_pre, attn.out    |                   | hook_resid_mid
mlp_norm             | LE  | resid_mid              | norms before; skipped | ln2.hook_normalized
"""
ONE_MLP = """
mlp.gate             | LI  | mlp_norm               | gate              | mlp.hook_pre
mlp.up               | LI  | mlp_norm               |                   | mlp.hook_pre_linear
mlp.silu             | LI  | mlp.gate               | plain gate; untraced |
mlp.act              | LI  | mlp.gate, mlp.up       |                   | mlp.hook_post
mlp.out              | LE  | mlp.act                |                   | hook_mlp_out
"""
EXPERTS = """
mlp.router           | LX  | mlp_norm
mlp.router_probs     | LX  | mlp.router             | ; untraced
mlp.experts          | Lk  | mlp.router
mlp.expert_weights   | Lk  | mlp.router, mlp.experts
mlp.gate             | LkM | mlp_norm, mlp.experts  | gate; by expert   | mlp.hook_pre
mlp.up               | LkM | mlp_norm, mlp.experts  | ; by expert       | mlp.hook_pre_linear
mlp.silu             | LkM | mlp.gate               | plain gate; untraced |
mlp.act              | LkM | mlp.gate, mlp.up       | ; by expert       | mlp.hook_post
mlp.expert_out       | LkE | mlp.act, mlp.experts   | ; added           |
mlp.shared.gate      | LJ  | mlp_norm               | shared, gate
mlp.shared.up        | LJ  | mlp_norm               | shared
mlp.shared.act       | LJ  | mlp.shared.gate, mlp.shared.up | shared
mlp.shared.router    | L1  | mlp_norm               | shared router; untraced
mlp.shared.weight    | L1  | mlp.shared.router      | shared router
mlp.shared.down      | LE  | mlp.shared.act         | shared; untraced
mlp.shared.out       | LE  | mlp.shared.down, mlp.shared.weight | shared; added
mlp.routed           | LE  | mlp.expert_out, mlp.expert_weights | ; untraced
mlp.out              | LE  | mlp.routed, mlp.shared.out |               | hook_mlp_out
"""
END_OF_LAYER = """
resid_post           | LE  | resid_mid, mlp.out     |                   | hook_resid_post
"""
BEHIND_LAYERS = """
final_norm_scale     | L1  |                        | ; on request      | ln_final.hook_scale
final_norm           | LE  |                        |                   | ln_final.hook_normalized
logits               | LV  | final_norm             |                   | hook_logits
"""


@dataclass(frozen=True, slots=True)
class Activation:
    """One row of a table. `name` is that within a layer, or of the whole model; `lens` is "" where
    TransformerLens has none."""

    name: str
    axes: str
    sources: tuple[str, ...]
    needs: frozenset[str]
    mark: str
    lens: str
    in_layer: bool

    @property
    def is_traced(self) -> bool:
        return self.mark != "untraced"

    @property
    def is_square(self) -> bool:
        """Whether it has an axis of queries and one of keys."""
        return "S" in self.axes

    @property
    def head_axis(self) -> int | None:
        """Which axis is that of its heads; None: it has none."""
        return next((at for at, axis in enumerate(self.axes) if axis in "HK"), None)

    def shape(self, config: ModelConfig, length: int) -> tuple[int, ...]:
        """That of one text of so many positions."""
        known = {"L": length, "S": length, "1": 1}
        return tuple(
            known[axis] if axis in known else getattr(config, AXES[axis]) for axis in self.axes
        )

    def heads(self, config: ModelConfig) -> int:
        """How many it has; 0 where it has no such axis."""
        at = self.head_axis
        return 0 if at is None else int(getattr(config, AXES[self.axes[at]]))


def read_table(text: str, *needs: str, in_layer: bool = True) -> list[Activation]:
    """The rows of a text; all of them need `needs`."""
    rows = []
    for name, axes, sources, own, lens in rows_of(text, 5):
        features_needed, _, mark = own.partition(";")
        rows.append(
            Activation(
                name,
                axes,
                tuple(words(sources)),
                frozenset([*words(features_needed), *needs]),
                mark.strip(),
                lens,
                in_layer,
            )
        )
    return rows


def words(cell: str) -> list[str]:
    return [word.strip() for word in cell.split(",") if word.strip()]


OUTSIDE = (
    read_table(BEFORE_LAYERS, in_layer=False),
    read_table(BEHIND_LAYERS, in_layer=False),
)
IN_LAYERS = [
    *read_table(ATTENTION),
    *read_table(ONE_MLP, "one mlp"),
    *read_table(EXPERTS, "experts"),
    *read_table(END_OF_LAYER),
]


def every_activation() -> list[Activation]:
    """All rows of all tables."""
    before, behind = OUTSIDE
    return [*before, *IN_LAYERS, *behind]


@cache
def having(found: frozenset[str]) -> dict[str, Activation]:
    """The activations of a layer that has these features."""
    return {one.name: one for one in IN_LAYERS if one.needs <= found}


def of_layer(config: ModelConfig, layer: int) -> dict[str, Activation]:
    """The activations of one layer, untraced ones too, in the order of computation."""
    return having(features(config, mixed=config.has_experts(layer)))


def activations(config: ModelConfig, *, without: tuple[str, ...]) -> dict[str, Activation]:
    """Those of a model under their full names, in the order of computation, but for some marks."""
    found = features(config, mixed=False)
    before, behind = ({one.name: one for one in some if one.needs <= found} for some in OUTSIDE)
    layers = {
        f"layers.{layer}.{name}": one
        for layer in range(config.num_layers)
        for name, one in of_layer(config, layer).items()
    }
    every = before | layers | behind
    return {name: one for name, one in every.items() if one.mark not in without}


def trace_names(config: ModelConfig, *, on_request: bool = False) -> list[str]:
    """The names that a trace of this model has, in the order of computation; with `on_request` also
    those that it has only where they are asked for."""
    without = ("untraced",) if on_request else ("untraced", "on request")
    return list(activations(config, without=without))


def layer_and_short_name(name: str) -> tuple[int | None, str]:
    """layers.3.attn.q is attn.q of layer 3; logits belong to no layer."""
    if not name.startswith("layers."):
        return None, name
    _, layer, short = name.split(".", 2)
    return int(layer), short


def layer_of(name: str) -> int | None:
    """The layer that an activation belongs to."""
    return layer_and_short_name(name)[0]


def activation_of(config: ModelConfig, name: str) -> Activation | None:
    """The row of a full name; None where the model has no such activation."""
    layer, short = layer_and_short_name(name)
    if layer is None:
        return next((one for some in OUTSIDE for one in some if one.name == name), None)
    return of_layer(config, layer).get(short)


def sources_of(
    config: ModelConfig, layer: int, name: str, *, untraced: bool = True
) -> tuple[str, ...]:
    """What an activation of a layer is computed from there, by short names. What the model lacks
    is left out, or stands for its own source; so do untraced ones where they are not asked for."""
    table, every = of_layer(config, layer), {one.name: one for one in IN_LAYERS}

    def there(source: str) -> tuple[str, ...]:
        row = table.get(source, every[source])
        if source in table and (untraced or row.is_traced):
            return (source,)
        passes = row.mark == "skipped" or source in table
        return tuple(one for before in row.sources for one in there(before)) if passes else ()

    return tuple(dict.fromkeys(one for source in table[name].sources for one in there(source)))
