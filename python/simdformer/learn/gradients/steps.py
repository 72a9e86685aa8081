"""The way back through a model as steps with known values: any gradient, computed from those before
it. The steps are those of learn/mistakes/model_backward.py.

The gradient of an activation is called like it, "layers.3.attn.q", that of a weight has "weight "
in front, "weight layers.3.wq": some weights have the name of the activation that they give.
"""

from collections.abc import Callable, Iterator, Mapping, Set
from functools import cached_property
from typing import Any

from simdformer.functional import linear
from simdformer.functional import scaled_dot_product_attention as attention
from simdformer.learn.mistakes.model import variable
from simdformer.learn.mistakes.model_backward import layer_backward, model_backward
from simdformer.learn.program import Program, State
from simdformer.models.activation_table import layer_of
from simdformer.models.table import rows_of
from simdformer.models.transformer import scaled
from simdformer.models.weight_table import weight_rows
from simdformer.training.model import TrainableModel
from simdformer.training.step import Passes
from simdformer.types import Array

__all__ = ["WEIGHT", "BackwardSteps", "Gradients"]

WEIGHT = "weight "
Gradients = dict[str, Array]

# step | the gradients of activations that it gives | of weights | what these are computed from
BEFORE_LAYERS = """
logits        | logits                         |                       |
final_norm    | final_norm                     | lm_head               | logits
last          | last                           | final_norm, final_norm_bias | final_norm
"""
MLP = """
mlp_out       | mlp.out                        |                       | resid_post
mlp_act       | mlp.act | down, down_bias, mlp_out_norm, mlp_out_norm_bias | mlp.out
mlp_up        | mlp.gate, mlp.up               |                       | mlp.act
up            | mlp.of_up                      | up, up_bias           | mlp.up
gate          | mlp.of_gate                    | gate, gate_bias       | mlp.gate
mlp_norm      | mlp_norm                       |                       | mlp.of_up, mlp.of_gate
"""
MIXTURE = """
mlp_out       | mlp.out                        |                       | resid_post
mixture       | mlp_norm                       |                       | mlp.out
"""
END_OF_LAYER = """
resid_mid     | resid_mid                      | mlp_norm, mlp_norm_bias | mlp_norm, resid_post
attn_out      | attn.out                       |                       | resid_mid
attn_z        | attn.z | wo, bo, attn_out_norm, attn_out_norm_bias | attn.out
attn_v        | attn.q_rot, attn.k_rot, attn.v | sinks                 | attn.z
attn_q_normed | attn.q_normed                  |                       | attn.q_rot
attn_k_normed | attn.k_normed                  |                       | attn.k_rot
attn_q        | attn.q                         | q_norm                | attn.q_normed
attn_k        | attn.k                         | k_norm                | attn.k_normed
wq            | attn.of_q                      | wq, bq                | attn.q
wk            | attn.of_k                      | wk, bk                | attn.k
wv            | attn.of_v                      | wv, bv                | attn.v
attn_norm     | attn_norm                  |                | attn.of_q, attn.of_k, attn.of_v
resid_pre     | resid_pre                      | attn_norm, attn_norm_bias | attn_norm, resid_mid
"""
BEHIND_LAYERS = """
embed         | embed                          | embed                 | layers.0.resid_pre
positions     |                                | pos_embed             | layers.0.resid_pre
"""
CALLED = {  # what a step runs, in the words of a report
    "logits": "the cross entropy",
    "final_norm": "the head",
    "last": "the final norm",
    "mlp_act": "down",
    "mlp_up": "the activation",
    "up": "up",
    "gate": "gate",
    "mixture": "the experts",
    "resid_mid": "the MLP's norm and residual",
    "attn_z": "wo",
    "attn_v": "attention",
    "attn_q_normed": "RoPE",
    "attn_k_normed": "RoPE",
    "attn_q": "the norm of q",
    "attn_k": "the norm of k",
    "wq": "wq",
    "wk": "wk",
    "wv": "wv",
    "resid_pre": "attention's norm and residual",
    "embed": "the embedding",
}


class BackwardSteps:
    """One forward and one backward pass of a model over ids and labels (B,L).

    right : the gradients by name, as above, in the order in which they are computed
    sources : what each is computed from
    """

    def __init__(self, model: TrainableModel, ids: Array, labels: Array) -> None:
        self.model, self.config, self.ids, self.labels = model, model.config, ids, labels
        self.rows = weight_rows(model.config)
        self.sources: dict[str, list[str]] = {}
        self.steps: dict[str, tuple[int | None, str]] = {}
        self.read(None, BEFORE_LAYERS)
        for index in reversed(range(self.config.num_layers)):
            self.read(index, (MIXTURE if self.config.has_experts(index) else MLP) + END_OF_LAYER)
        self.read(None, BEHIND_LAYERS)
        self.step, self.loss, self.right = self.passed(model, labels)
        self._kept: dict[int, dict[str, Any]] = {}

    @cached_property
    def forward(self) -> Mapping[str, Array]:
        """The activations."""
        found: Mapping[str, Array] = self.model.language_model().transformer.run_with_cache(
            self.ids
        )[1]
        return found

    def read(self, index: int | None, table: str) -> None:
        at = "" if index is None else f"layers.{index}."
        for step, activations, weights, sources in rows_of(table, 4):
            of = [self.stream(at + name) for name in words(sources)]
            named = [at + name for name in words(weights)]
            if step == "mixture":
                inside = (row for row in self.rows if row.startswith(at))
                named = [row for row in inside if self.rows[row].part in ("mlp", "experts")]
            names = [WEIGHT + name for name in named if name in self.rows]
            for name in (*names, *(self.stream(at + one) for one in words(activations))):
                self.steps[name], self.sources[name] = (index, step), of

    def stream(self, name: str) -> str:
        """What one layer leaves is what the next one gets; `last` is what the last one leaves."""
        if name == "last":
            return f"layers.{self.config.num_layers - 1}.resid_post"
        index = layer_of(name)
        if index in (None, self.config.num_layers - 1) or not name.endswith("resid_post"):
            return name
        return f"layers.{(index or 0) + 1}.resid_pre"

    def passed(self, model: TrainableModel, labels: Array) -> tuple[Passes, float, Gradients]:
        """The step, its loss, and all gradients by name, in their order."""
        seen: Gradients = {}

        def see(name: str, gradient: Array) -> None:
            seen[self.stream(name)] = gradient.copy()

        step = Passes(model, self.ids, labels, None, see=see)
        loss, weights = step.run()
        every = seen | {WEIGHT + name: gradient for name, gradient in weights.items()}
        return step, loss, {name: every[name] for name in self.steps if name in every}

    # ---- what is known ---------------------------------------------------------------------------

    def made_of(self, name: str) -> str:
        """The gradient of an activation that a gradient is made of: it is right where this is."""
        if not name.startswith(WEIGHT):
            return name
        return self.sources[name][0]

    def before(self, name: str) -> set[str]:
        """A gradient of an activation, and all that it is computed from."""
        found, todo = set(), [name]
        while todo:
            if (one := todo.pop()) not in found:
                found.add(one)
                todo += self.sources.get(one, [])
        return found

    def needed(self, target: str, known: Set[str]) -> list[tuple[int | None, str]]:
        """The steps from what is known to the target, in order."""
        found, todo = set(), [target]
        while todo:
            name = todo.pop()
            if name not in found and (name == target or not self.has(name, known)):
                found.add(name)
                todo += self.sources[name]
        return list(dict.fromkeys(self.steps[name] for name in self.steps if name in found))

    def border(self, target: str, known: Set[str]) -> list[str]:
        """The known gradients from which the target is computed."""
        needed = self.needed(target, known)
        names = (name for name, step in self.steps.items() if step in needed)
        found = dict.fromkeys(source for name in names for source in self.sources[name])
        return [name for name in self.steps if name in found and name in known]

    def way(self, target: str, known: Set[str]) -> list[str]:
        """What these steps run, in words."""
        steps = self.needed(target, known)
        return list(dict.fromkeys(CALLED[step] for _, step in steps if step in CALLED))

    # ---- as a program ----------------------------------------------------------------------------

    def part(
        self, target: str, known: Set[str], take: Callable[[Any], Any]
    ) -> tuple[Program | None, dict[str, Any]]:
        """The program from what is known to the target, and what it starts from; `take` is applied
        to the target. None: there are experts on the way."""
        needed = self.needed(target, known)
        if any(step == "mixture" for _, step in needed):
            return None, {}
        index = self.steps[target][0]
        plan = [(at, *self.of_layer(at, needed, known)) for at in self.layers(needed)]
        steps = {step for at, step in needed if at is None} | ({"layers"} if plan else set())
        if target == WEIGHT + "embed" and self.config.tie_embeddings:
            steps |= {"final_norm", "tie"} | (set() if self.has("logits", known) else {"logits"})
        whole = Program("model_backward")
        whole.steps = {
            name: step
            for name, step in model_backward.steps.items()
            if name.partition(".")[2] in steps
        }
        whole.conditions = model_backward.conditions
        of_weight = target.startswith(WEIGHT)
        found = ("dw_" if of_weight else "d_") + variable(target.removeprefix(WEIGHT))
        found = "d_last" if target == self.stream("last") else found

        def result(s: State) -> None:
            s.out = take(getattr(s if index is None else s.layer, found))

        whole.steps["model_backward.result"] = result
        return whole, self.given(known) | {"plan": plan}

    def layers(self, needed: list[tuple[int | None, str]]) -> list[int]:
        """From the last to the first."""
        return sorted({index for index, _ in needed if index is not None}, reverse=True)

    def given(self, known: Set[str]) -> dict[str, Any]:
        """The variables of the whole model."""
        last = self.config.num_layers - 1
        found: dict[str, Any] = {
            "ids": self.ids,
            "labels": self.labels,
            "config": self.config,
            "tensors": self.tensors,
            "forward": self.step,
            "final_norm": self.forward["final_norm"],
            "resid_post": self.forward[f"layers.{last}.resid_post"],
            "logits": self.logits(),
            "d_last": None,
        }
        names = {"logits": "d_logits", "final_norm": "d_final_norm"}
        names |= {self.stream("last"): "d_last", "layers.0.resid_pre": "d_embed"}
        return found | {names[name]: self.right[name] for name in names if self.has(name, known)}

    def of_layer(
        self, index: int, needed: list[tuple[int | None, str]], known: Set[str]
    ) -> tuple[Program, dict[str, Any]]:
        """The steps of a layer, and its variables that are known."""
        at, program = f"layers.{index}.", Program("layer_backward")
        steps = {step for layer, step in needed if layer == index}
        program.steps = {
            name: step
            for name, step in layer_backward.steps.items()
            if name.partition(".")[2] in steps
        }
        given = dict(self.kept(index))
        for name in known:
            if name.startswith(at) and self.has(name, known):
                given[f"d_{variable(name)}"] = self.right[name]
        stream = self.stream(at + "resid_post")
        if self.has(stream, known):
            given["d_resid_post"] = self.right[stream]
        return program, given

    def has(self, name: str, known: Set[str]) -> bool:
        return name in known and name in self.right

    def kept(self, index: int) -> dict[str, Any]:
        """The activations of a layer, and log sum exp of its scores."""
        if index in self._kept:
            return self._kept[index]
        at = f"layers.{index}."
        names = (name for name in self.forward if name.startswith(at))
        found: dict[str, Any] = {"mlp_gate": None}
        found |= {variable(name): self.forward[name] for name in names}
        found.setdefault("attn_norm", found["resid_pre"])
        found.setdefault("mlp_norm", found["resid_mid"])
        heads = (found[name].swapaxes(1, 2) for name in ("attn_q_rot", "attn_k_rot", "attn_v"))
        found["attn_lse"] = attention(*heads, return_lse=True, **self.step.options(index))[1]
        self._kept[index] = found
        return found

    def logits(self) -> Array:
        """Before they are capped."""
        head = self.tensors("embed" if self.config.tie_embeddings else "lm_head")
        x = scaled(self.forward["final_norm"], 1 / self.config.logit_divisor)
        product: Array = linear(x, head, arithmetic="float32")
        return product

    def tensors(self, name: str, layer: int | None = None, expert: int | None = None) -> Any:
        """A weight as it is multiplied; None where the model has none."""
        name = name if layer is None else f"layers.{layer}.{name}"
        if name not in self.rows:
            return None
        return self.step.norm_weight(name) if self.rows[name].is_norm else self.model.weights[name]


def words(cell: str) -> Iterator[str]:
    return (word.strip() for word in cell.split(",") if word.strip())
