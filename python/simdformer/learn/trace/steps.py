"""A model as steps with known values: any activation, computed from those before it.

Arrays are float64 and have a batch axis in front: heads lie as (B,L,H,D), scores as (B,H,L,S), all
others as (B,L,E).
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from simdformer.learn.check.compare import TOLERANCE, compare, numbers
from simdformer.learn.check.rounding import F32
from simdformer.learn.mistakes.experts import experts
from simdformer.learn.mistakes.model import ATTENDING, model, variable
from simdformer.learn.mistakes.model_weights import STEPS
from simdformer.learn.program import STEPS as PROGRAM_STEPS
from simdformer.learn.program import Beginning, Program, Run, State, Thin
from simdformer.learn.trace.decided import Decided
from simdformer.learn.trace.places import known_names
from simdformer.learn.trace.tensors import Tensors
from simdformer.models.activation_table import (
    activation_of,
    every_activation,
    layer_and_short_name,
    layer_of,
    sources_of,
)
from simdformer.models.transformer import Transformer

__all__ = ["ModelSteps"]

Float64 = np.ndarray[Any, np.dtype[np.float64]]
Known = Mapping[str, Float64]
POSITIONS = ("position", "query", "key")  # axes of tokens
# (B,H,L,S); all others (B,L,...)
SQUARE = {variable(row.name) for row in every_activation() if row.is_square}
FIRST = 16  # positions, fewer of which take nearly as long
LAYERS = 2  # in which most mistakes have shown


def stream(s: State) -> None:
    """Instead of a result: what the last of the layers leaves."""
    s.out = s.resid_post


def first_layers(variables: dict[str, Any]) -> dict[str, Any]:
    return variables | {"plan": variables["plan"][:LAYERS]}


class ModelSteps:
    """The steps of one forward pass of a model on ids (B,L).

    names : those of all activations, in the order of computation
    right : what the model itself computes, by name
    """

    def __init__(self, transformer: Transformer, ids: np.ndarray[Any, Any]) -> None:
        transformer.require_whole("check_trace")
        self.config = transformer.config
        self.ids = ids
        self.tensors = Tensors(transformer.config, transformer.weights)
        self.names = known_names(self.config)
        self.right = {
            name: numbers(array) for name, array in transformer.run_with_cache(ids)[1].items()
        }
        self.decided: dict[int, Decided] = {}
        for index in filter(self.config.has_experts, range(self.config.num_layers)):
            ids = self.right[f"layers.{index}.mlp.experts"].astype(int)
            self.decided[index] = Decided(ids)
        self._sources = {name: self._looked_up(name) for name in self.names}
        for name in self.names:  # those that no trace has
            if name not in self.right:
                self.right[name] = self.value(name, self.right)

    def sources(self, name: str) -> list[str]:
        """What an activation is computed from directly."""
        return self._sources[name]

    def _looked_up(self, name: str) -> list[str]:
        index = layer_of(name)
        if index is None:
            last = f"layers.{self.config.num_layers - 1}.resid_post"
            whole = {"embed": [], "pos_embed": [], "final_norm": [last]}
            return whole.get(name, ["final_norm"])
        short = layer_and_short_name(name)[1]
        if short == "resid_pre":
            return self.before(index)
        return [f"layers.{index}.{source}" for source in sources_of(self.config, index, short)]

    def reorder(self, index: int, ids: Float64) -> None:
        """Brings what is right of the experts of a layer into the order of ids (B,L,k)."""
        at = f"layers.{index}."
        if (ids == self.right[at + "mlp.experts"]).all():
            return
        each = [
            name
            for name in self.names
            if name.startswith(at)
            and name != at + "mlp.experts"
            and (row := activation_of(self.config, name))
            and "k" in row.axes
        ]
        known = {name: x for name, x in self.right.items() if name not in each}
        known[at + "mlp.experts"] = ids
        for name in each:
            known[name] = self.right[name] = self.value(name, known)

    def step(self, name: str) -> str:
        """The full name of the step that computes an activation."""
        index, short = layer_of(name), variable(name)
        if index is None:
            return f"model.{short}"
        mixed = self.config.has_experts(index) and f"experts.{short}" in experts.steps
        return f"experts.{short}" if mixed else f"layer.{short}"

    def before(self, index: int) -> list[str]:
        """What comes into a layer: what the one before has left, or the embedding."""
        if index:
            return [f"layers.{index - 1}.resid_post"]
        return [name for name in ("embed", "pos_embed") if name in self.names]

    def streams(self, known: Known) -> dict[int, Float64]:
        """What each layer leaves; that of number -1 is the embedding."""
        values = {**self.right, **known}
        return {
            index - 1: np.sum([values[name] for name in self.before(index)], axis=0)
            for index in range(self.config.num_layers + 1)
        }

    def needed(self, target: str, known: Known) -> list[str]:
        """The steps from what is known to the target, which is the last of them."""
        found: set[str] = set()
        todo = [target]
        while todo:
            name = todo.pop()
            if name not in found and (name == target or name not in known):
                found.add(name)
                todo += self.sources(name)
        return [name for name in self.names if name in found]

    def border(self, target: str, known: Known) -> list[str]:
        """The known values from which the target is computed."""
        sources = {source for name in self.needed(target, known) for source in self.sources(name)}
        return [name for name in self.names if name in known and name in sources]

    def weights(self, target: str, known: Known) -> list[str]:
        """The names of the weights of layers that take part on the way to the target."""
        steps = {self.step(name) for name in self.needed(target, known)}
        return [weight for weight, step in STEPS.items() if step in steps]

    def part(
        self, target: str, known: Known, take: Callable[[Any], Any]
    ) -> tuple[Program, dict[str, Any]]:
        """The program from what is known to the target, and what it starts from; `take` is applied
        to the target."""
        needed = self.needed(target, known)
        values = {**self.right, **known}
        plan = []
        for index in sorted({i for name in needed if (i := layer_of(name)) is not None}):
            at = f"layers.{index}."
            program = Program("layer")
            names = [self.step(name) for name in needed if name.startswith(at)]
            program.steps = {name: PROGRAM_STEPS[name] for name in names}
            before = self.before(index)
            start: dict[str, Any] = {"attends_at_once": set(names) >= ATTENDING}
            if index and before[0] not in needed:
                start["came_in"] = values[before[0]]
            given: dict[str, Any] = {
                variable(name): value.astype(int) if name.endswith("mlp.experts") else value
                for name, value in values.items()
                if name.startswith(at) and name not in needed
            }
            given["decided"] = self.decided.get(index)
            if self.config.norm_placement == "after":  # attention and MLP read the stream itself
                read = {"attn_norm": "resid_pre", "mlp_norm": "resid_mid"}
                given |= {
                    name: given[as_it_is] for name, as_it_is in read.items() if as_it_is in given
                }
            plan.append((index, program, start | given))

        whole = Program("model")
        steps = {f"model.{name}" for name in needed}
        steps |= {"model.stream", "model.layers"} if plan else set()
        whole.steps = {name: step for name, step in model.steps.items() if name in steps}
        whole.conditions = model.conditions

        def result(s: State) -> None:
            inside = target.startswith("layers.")
            s.out = take(getattr(s.layer if inside else s, variable(target)))

        whole.steps["model.result"] = result
        given = {
            variable(name): values[name]
            for name in (*self.before(0), "final_norm", *self.before(self.config.num_layers))
            if name in values
        }
        return whole, given | {
            "ids": self.ids,
            "config": self.config,
            "tensors": self.tensors,
            "plan": plan,
        } | ({"vocabulary": None} if target == "logits" else {})

    def value(self, target: str, known: Known, take: Callable[[Any], Any] = lambda x: x) -> Float64:
        """The target as it should be, after what is known."""
        if not self.decided and not self.border(target, known):
            return numbers(take(self.right[target]))
        program, variables = self.part(target, known, take)
        with np.errstate(all="ignore"):
            return numbers(Run(np.float64)(program, **variables).out)

    def shorten(self, program: Program, mine: Any, right: Any) -> None:
        """Says of a program how a long sequence is sampled, and many layers are looked at: by their
        beginning. Mine is of the program's axes."""
        axes = program.axes
        at = [axis - len(axes) for axis, name in enumerate(axes) if name in POSITIONS]
        if (
            mine.shape != right.shape
            or not at
            or any(mine.shape[axis] != self.ids.shape[1] for axis in at)
        ):
            return
        wrong = compare(mine, right, TOLERANCE[F32], F32).wrong.swapaxes(0, at[0])
        first = int(np.argmax(wrong.reshape(len(wrong), -1).any(axis=1)))
        program.thin = self.thin(at, first)
        if "model.final_norm" in program.steps:
            short = Program("model")
            names = list(program.steps)
            names = names[: names.index("model.final_norm")]
            short.steps = {name: program.steps[name] for name in names}
            short.steps["model.result"] = stream
            short.conditions = program.conditions
            program.beginning = Beginning(short, first_layers, first)

    def thin(self, at: list[int], wrong: int) -> Thin:
        """The first tokens alone, up to the first that is wrong, for none sees a later one. `at`:
        the axes of positions."""
        config = self.config
        widest = max(
            config.hidden_size, config.intermediate_size, config.num_heads * config.head_dim
        )

        def fewer(
            variables: dict[str, Any], limit: int
        ) -> tuple[dict[str, Any], Callable[[Any], Any]] | None:
            batch, length = variables["ids"].shape
            count = max(limit // (batch * widest), wrong + 1, FIRST)
            if count >= length:
                return None

            def some(x: Any, *axes: int) -> Any:
                for axis in axes:
                    x = np.asarray(x).swapaxes(0, axis)[:count].swapaxes(0, axis)
                return x

            def known(given: dict[str, Any]) -> dict[str, Any]:
                return {
                    name: x if np.ndim(x) < 2 else some(x, *((2, 3) if name in SQUARE else (1,)))
                    for name, x in given.items()
                }

            others = ("config", "tensors", "plan", "vocabulary")
            given = {name: x for name, x in variables.items() if name not in others}
            plan = [(index, program, known(x)) for index, program, x in variables["plan"]]
            return variables | known(given) | {"plan": plan}, lambda out: some(out, *at)

        return fewer
