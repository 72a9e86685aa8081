"""Every tensor of a model, once: its name, its axes, which models have it, and what several ranks
do with it. Shapes, the check of a checkpoint, packing, budgets, plans and ranks read these tables.

Axes are those of models/table.py, the outputs of a matrix first; HD stands for all heads side by
side.
"""

import re
from dataclasses import dataclass, replace
from functools import cache

from simdformer.models.config import ModelConfig
from simdformer.models.table import AXES, features, rows_of

__all__ = ["LENGTH_ONE", "WeightRow", "axis", "expert_of", "weight_rows"]

# name | axes | part of the budget | what the model needs; mark
#   looked up  no matrix, though it has two axes: nothing is multiplied by it
#   whole      every rank has all of it: a norm over all heads, which are joined for it
#   once       rank 0 alone has it, which is added behind a sum over ranks
BEFORE_LAYERS = """
embed              | V E  | embedding
pos_embed          | P E  | embedding | learned positions; looked up
"""
ATTENTION = """
attn_norm          | E    | norms     | norms before
attn_norm_bias     | E    | norms     | norms before, layer norms
wq                 | HD E | attention
wk                 | KD E | attention
wv                 | KD E | attention
bq                 | HD   | attention | qkv biases
bk                 | KD   | attention | qkv biases
bv                 | KD   | attention | qkv biases
q_norm             | D    | norms     | qk norms by head
k_norm             | D    | norms     | qk norms by head
q_norm             | HD   | norms     | qk norms over all; whole
k_norm             | KD   | norms     | qk norms over all; whole
wo                 | E HD | attention
bo                 | E    | attention | wo bias; once
sinks              | H    | attention | sinks
attn_out_norm      | E    | norms     | norms after
attn_out_norm_bias | E    | norms     | norms after, layer norms
mlp_norm           | E    | norms     | norms before
mlp_norm_bias      | E    | norms     | norms before, layer norms
"""
ROUTER = """
router             | X E  | mlp
router_bias        | X    | mlp       | mlp biases
"""
# An MLP, whose inner width is the axis *.
MLP = """
gate               | * E  | mlp       | gate
up                 | * E  | mlp
down               | E *  | mlp
gate_bias          | *    | mlp       | mlp biases, gate
up_bias            | *    | mlp       | mlp biases
down_bias          | E    | mlp       | mlp biases; once
"""
SHARED_ROUTER = """
shared.router      | 1 E  | mlp       | shared router
"""
END_OF_LAYER = """
mlp_out_norm       | E    | norms     | norms after
mlp_out_norm_bias  | E    | norms     | norms after, layer norms
"""
BEHIND_LAYERS = """
final_norm         | E    | norms
final_norm_bias    | E    | norms     | layer norms
lm_head            | V E  | lm_head   | own lm_head
"""


@dataclass(frozen=True, slots=True)
class WeightRow:
    """One row of a table. `axes`: for each the field of the config, or the product of two, that
    says how long it is."""

    name: str
    axes: tuple[str, ...]
    part: str
    needs: frozenset[str]
    mark: str

    @property
    def is_matrix(self) -> bool:
        """Whether something is multiplied by it: it is packed, and may be quantised."""
        return len(self.axes) == 2 and self.mark != "looked up"

    @property
    def is_norm(self) -> bool:
        """Whether it is the weight of a norm, to which `norm_offset` is added."""
        return self.name.endswith("norm")


LENGTH_ONE = "1"
EXPERT = re.compile(r"(?:layers\.\d+\.)?experts\.(\d+)\.")


def axis(letters: str) -> str:
    """HD: num_heads * head_dim."""
    return " * ".join(AXES.get(letter, LENGTH_ONE) for letter in letters)


def read_table(
    text: str, *needs: str, prefix: str = "", inner: str = "", part: str = ""
) -> list[WeightRow]:
    """The rows of a text; all of them need `needs`."""
    rows = []
    for (
        name,
        axes,
        own_part,
        own,
    ) in rows_of(text, 4):
        found, _, mark = own.partition(";")
        names = tuple(axis(letters.replace("*", inner)) for letters in axes.split())
        wanted = frozenset(need.strip() for need in found.split(",") if need.strip())
        rows.append(
            WeightRow(prefix + name, names, part or own_part, wanted.union(needs), mark.strip())
        )
    return rows


EXPERT_ROWS = [  # what one expert adds is weighed before it is summed, its bias too
    replace(row, mark="")
    for row in read_table(MLP, "experts", prefix="experts.{}.", inner="M", part="experts")
]
IN_LAYERS = [
    *read_table(ATTENTION),
    *read_table(MLP, "one mlp", inner="I"),
    *read_table(ROUTER, "experts"),
    *EXPERT_ROWS,
    *read_table(MLP, "shared", prefix="shared.", inner="J"),
    *read_table(SHARED_ROUTER),
    *read_table(END_OF_LAYER),
]
OUTSIDE = read_table(BEFORE_LAYERS), read_table(BEHIND_LAYERS)


@cache
def of_layer(found: frozenset[str], experts: int) -> dict[str, WeightRow]:
    """The tensors of a layer that has these features, each expert's one behind the other."""
    rows = [row for row in IN_LAYERS if row.needs <= found]
    each = [row for row in rows if row.part == "experts"]
    table: dict[str, WeightRow] = {}
    for row in rows:
        if row not in each:
            table[row.name] = row
        elif row is each[0]:
            table |= {one.name.format(i): one for i in range(experts) for one in each}
    return table


def weight_rows(config: ModelConfig) -> dict[str, WeightRow]:
    """Every tensor of a model of this config, in the order of computation."""
    kinds = {mixed: features(config, mixed=mixed) for mixed in (False, True)}
    before, behind = (
        {row.name: row for row in some if row.needs <= kinds[False]} for some in OUTSIDE
    )
    layers = {
        f"layers.{layer}.{name}": row
        for layer in range(config.num_layers)
        for name, row in of_layer(kinds[config.has_experts(layer)], config.num_experts).items()
    }
    return before | layers | behind


def expert_of(name: str) -> int | None:
    """The number of the expert that a tensor belongs to, if it does."""
    found = EXPERT.match(name)
    return int(found[1]) if found else None
