"""Computations cut into named steps, so that any step can be done wrong (see catalogue.py).

A program is a text of steps, each a few lines on the variables of one run (see lines.py). The
variables that it starts from are the arguments of the operation that it spells out, by the names of
that operation's signature, and a layer's attributes. The result is `out`, a tuple or
list where the operation gives one:

    softmax = Program(
        "softmax",
        '''
        shift: scores = array(x) - array(x).max(axis=axis, keepdims=True)
        temper if temperature != 1: scores = scores / real(temperature)
        divide:
            exponentials = np.exp(scores)
            out = exponentials / exponentials.sum(axis=axis, keepdims=True)
        ''',
        of=functional.softmax,
    )
    run = Run(np.float64)
    run(softmax, x=scores).out       # as it should be

A step with a condition is left out where it does not hold: what goes wrong in it is tried only
where it is done. A step binds new arrays to names; it never writes into an array of before, for
what an earlier run has computed is used again by later ones.

Programs run one another (`run(rope, x=q, ...)`), and replaced steps are replaced at every depth:
what can go wrong in RoPE can go wrong in the RoPE of an attention layer. Mistakes in different
steps combine.
"""

import inspect
import re
import textwrap
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np

from simdformer.learn.lines import Lines, named

__all__ = ["OPERATIONS", "STEPS", "Beginning", "Program", "Run", "State", "Step", "Tape", "Value"]

State = SimpleNamespace  # the variables of one run of a program; `s.run` is the run itself
Step = Callable[[Any], None]
Value = Callable[[Any], Any]  # of a variable, from the variables
Thin = Callable[[dict[str, Any], int], tuple[dict[str, Any], Callable[[Any], Any]] | None]


class Program:
    """Steps in order; each reads and writes the variables of a `State`.

    text : the steps
    calls : the functions and programs that they call
    of : the function or the class of layers that the program spells out; `check` then finds it
    takes : what it is called with, where the package has no such function
    axes : what the axes of the result are called, as far as they have a name, the last one last
    tables : the variables that are computed in float32 at least, whatever dtype a model has
    thin : how a large problem is sampled. It takes the variables of a run, and about how many
        numbers one array may hold; it gives the variables of a smaller problem, whose result is a
        part of the result of the whole one, and a function that takes this part out of a result.
        None: it is small enough
    terms : one expression on the last variables. For each result it gives the size of the terms
        that are subtracted on the way to it, which may leave next to nothing; None where nothing
        cancels. `unit` is how far off a number of size 1 may be
    """

    def __init__(
        self,
        name: str,
        text: str = "",
        *,
        calls: tuple[Any, ...] = (),
        of: Callable[..., Any] | None = None,
        takes: tuple[str, ...] = (),
        axes: tuple[str, ...] = (),
        tables: Set[str] = frozenset(),
        thin: Thin | None = None,
        terms: str = "",
    ) -> None:
        self.name = name
        self.of = of
        self.axes = axes
        self.tables = tables
        self.steps: dict[str, Step] = {}
        self.conditions: dict[str, Value] = {}
        self.thin = thin
        self.beginning: Beginning | None = None  # of a long one, what shows in its first steps
        self.defaults: dict[str, Any] = {}
        self.takes = takes
        names = named(calls)
        self.terms = Lines(terms, names) if terms else None
        for step in STEP.finditer(textwrap.dedent(text) + "\n"):
            full = f"{name}.{step['name']}"
            if full in STEPS:
                raise ValueError(f"{full} is a step already")
            self.steps[full] = STEPS[full] = Lines(step["line"] or step["lines"], names).checked()
            if step["condition"]:
                self.conditions[full] = Lines(step["condition"], names).value
        if of is not None:
            OPERATIONS[of] = self
            called = of.__call__ if isinstance(of, type) else of
            parameters = inspect.signature(called).parameters
            self.takes = (*parameters,)
            self.defaults = {
                name: parameter.default
                for name, parameter in parameters.items()
                if parameter.default is not parameter.empty
            }

    def __repr__(self) -> str:
        return f"Program({self.name!r}, {len(self.steps)} steps)"


STEP = re.compile(
    r"^(?P<name>\w+)(?: if (?P<condition>.+?))?:(?: (?P<line>\S.*)|\n(?P<lines>(?:[ ]+.+\n|\n)+))",
    re.M,
)
CHANGED = 1e-3  # of the largest number of a position
STEPS: dict[str, Lines] = {}  # all right steps, by full name
OPERATIONS: dict[Callable[..., Any], Program] = {}  # functions and layer classes, their programs


@dataclass(frozen=True)
class Beginning:
    """A shorter program that shows which positions a mistake changes in a long one.

    program : its steps; the result is (B,L,E)
    variables : that it starts from, of those of the long one
    wrong : the first position where the long one's result is not what it should be
    """

    program: Program
    variables: Callable[[dict[str, Any]], dict[str, Any]]
    wrong: int

    def first_changed(self, mine: Any, right: Any) -> int | None:
        """The first position that is another one; None if there is none."""
        off = np.abs(mine - right).max(axis=(0, 2)) > CHANGED * np.abs(right).max(axis=(0, 2))
        return int(np.argmax(off)) if off.any() else None


@dataclass
class Tape:
    """What one evaluation of a program left behind, for later ones that differ in a few steps."""

    program: Program
    before: list[dict[str, Any]] = field(default_factory=list)  # variables before each step
    visited: list[set[str]] = field(default_factory=list)  # steps run in each step, nested ones too
    nested: list[list["Tape"]] = field(default_factory=list)  # programs run in each step
    after: dict[str, Any] = field(default_factory=dict)

    def first_touched(self, steps: Set[str]) -> int:
        """The number of the first step that is one of these or runs one of these."""
        touched = (i for i, names in enumerate(self.visited) if not steps.isdisjoint(names))
        return next(touched, len(self.visited))

    @cached_property
    def operations(self) -> dict[Program, set[str]]:
        """The programs that spell out a function of the package, and the steps that their runs
        were made of."""
        found: dict[Program, set[str]] = {}
        for tape in (inner for tapes in self.nested for inner in tapes):
            for program, steps in tape.operations.items():
                found.setdefault(program, set()).update(steps)
            if inspect.isfunction(tape.program.of):
                found.setdefault(tape.program, set()).update(*tape.visited)
        return found


class Rounding(Protocol):
    """What rounding to a dtype does to the arrays of a run."""

    dtype: np.dtype[Any]

    def of_number(self, x: Any) -> Any:
        """A number among the arguments, or one that is made of them."""

    def of_input(self, x: Any) -> Any:
        """An array as it comes in."""

    def of_result(self, step: str, x: Any, table: bool) -> Any:
        """What a step, by its full name, has left."""


@dataclass
class Run:
    """One evaluation: the dtype of its arithmetic, and the steps that are done otherwise.

    `visited` are the full names of all steps that were run, those of nested programs included: the
    mistakes worth trying are those that replace one of them. With `earlier`, the tape of another
    run of the same program on the same variables, only what comes after the first of the steps
    `differing` from that run is computed. `tape` is this run's own; without `record` there is none.

    `operations` of a tape, where they are given, are asked themselves in place of the programs that
    spell them out, unless one of their steps is done otherwise: that is quicker by far.

    `rounding` shows how much of a result is a matter of rounding: every array that a step leaves
    passes through it. See `check/rounding.py`.
    """

    dtype: Any
    replaced: Mapping[str, Step] = field(default_factory=dict)
    visited: set[str] = field(default_factory=set)
    earlier: Tape | None = None
    differing: Set[str] = frozenset()
    record: bool = True
    rounding: Rounding | None = None
    operations: Mapping[Program, Set[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.dtype = np.dtype(self.dtype).type
        self.tape: Tape | None = None
        self._pending = [] if self.earlier is None else [self.earlier]
        self._inside: tuple[set[str], list[Tape]] = (self.visited, [])

    def __call__(self, program: Program, **variables: Any) -> Any:
        """The variables after the last step."""
        old = self._pending.pop(0) if self._pending else None
        steps = self.operations.get(program)
        if old is None and steps is not None and steps.isdisjoint(self.replaced):
            return self.asked(program, variables)
        known, pending, (names, tapes) = 0, self._pending, self._inside
        tape = Tape(program)
        if old is None:
            s = State(**program.defaults | variables, run=self)
        else:
            known = old.first_touched(self.differing)
            tape.before, tape.visited = old.before[:known], old.visited[:known]
            tape.nested = old.nested[:known]
            s = State(**(old.after if known == len(old.before) else old.before[known]), run=self)
        for i, (name, step) in enumerate(program.steps.items()):
            if i < known:
                continue
            wanted = program.conditions.get(name, bool)(s)
            tape.before.append(self.variables(s))
            tape.visited.append({name} if wanted else set())
            tape.nested.append([])
            self._inside = (tape.visited[i], tape.nested[i])
            alike = old is not None and i == known and name not in self.differing
            self._pending = old.nested[i][:] if old is not None and alike else []
            held = {} if self.rounding is None else vars(s).copy()
            if wanted:
                self.replaced.get(name, step)(s)
            if self.rounding is not None:
                self.round_results(program, name, held, s)
        tape.after = self.variables(s)
        names.update(*tape.visited)
        tapes.append(tape)
        # Once something differs, nothing that follows is known from the earlier run.
        self._pending = pending if old is not None and known == len(program.steps) else []
        self._inside = (names, tapes)
        self.tape = tape
        return s

    def asked(self, program: Program, variables: dict[str, Any]) -> Any:
        """What the function of the package gives that a program spells out."""
        assert program.of is not None

        def argument(name: str, x: Any) -> Any:
            if isinstance(x, np.ndarray) and x.dtype == np.float64 and name not in program.tables:
                return self.array(x)
            return x.operand if hasattr(x, "operand") else x

        taken = {k: argument(k, x) for k, x in variables.items() if k in program.takes}
        return State(out=program.of(**taken), run=self)

    def variables(self, s: Any) -> dict[str, Any]:
        """What a tape remembers of a state."""
        if not self.record:
            return {}
        held: dict[str, Any] = vars(s).copy()
        del held["run"]
        return held

    def number(self, x: Any) -> Any:
        """What a run starts from: a number may be rounded; other things as they are."""
        if self.rounding is None:
            return x
        return tuple(map(self.number, x)) if type(x) is tuple else self.rounding.of_number(x)

    def real(self, x: Any) -> Any:
        """A number in the dtype of the arithmetic."""
        return self.dtype(self.number(x))

    def array(self, x: Any) -> Any:
        """x in the dtype of the arithmetic; None stays None."""
        if x is None:
            return None
        if hasattr(x, "unpack"):
            x = x.unpack()
        x = x if hasattr(x, "beside") else np.asarray(x)  # some matrices stay where they lie
        x = x.astype(self.dtype, copy=False)
        return x if self.rounding is None else self.rounding.of_input(x)

    def round_results(self, program: Program, name: str, held: dict[str, Any], s: Any) -> None:
        """Rounds what a step has bound to names."""
        assert self.rounding is not None
        for variable, value in list(vars(s).items()):
            if value is not held.get(variable):
                table = variable in program.tables
                setattr(s, variable, self.rounding.of_result(name, value, table))
