"""Formulas that differ from the right one in one place: what no catalogue has to list.

A slip is made of a step's own lines: a factor or a term is left out or too many, a sign is turned
round, a sum stands for a mean, it runs over another axis, keepdims is lost, a matrix is not
transposed, one variable stands for another of the same shape, a line is left out, done twice, or
comes too early.
"""

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from simdformer.learn.catalogue import CATALOGUE, Mistake, Variation
from simdformer.learn.lines import Lines, plain
from simdformer.learn.mistakes.backward_attention import transposed
from simdformer.learn.program import Program, Tape

__all__ = ["Factor", "factors", "slips"]

OTHERS = 8  # variables that are tried in place of one
CLOSE, MOST = 1e-5, 10_000  # relatively, of a number to a fraction; and its two numbers, multiplied
# Not tried beside a mistake: there are many, and few are made.
UNUSUAL = {
    "another_variable", "changed", "factor_more", "number_more", "overwritten", "shifted", "stale",
    "term_more", "too_early",
}  # fmt: skip
CAUSES = {
    "another_axis": "The axis is counted from the wrong end, or a default was taken.",
    "another_function": "These are two functions.",
    "another_variable": "They have the same shape: nothing complains.",
    "bound_inverted": "The other one of the two is taken.",
    "bound_missing": "The formula takes one of the two.",
    "changed": "It goes into the formula as it is.",
    "comparison": "The border is taken for the other side, or the two sides are swapped.",
    "condition_inverted": "The two cases are swapped.",
    "condition_missing": "Every place is treated alike.",
    "divisor_inverted": "Its inverse is taken.",
    "divisor_missing": "The formula divides by it once.",
    "divisor_twice": "The formula divides by it once.",
    "factor": "One factor too many or too few: a mean over another number of rows, a scale.",
    "factor_inverted": "Its inverse is taken.",
    "factor_missing": "The chain rule multiplies by each of them.",
    "factor_more": "One factor too many, or that of another formula.",
    "factor_twice": "It is in the formula once.",
    "function_missing": "The formula has the function of it.",
    "keepdims_lost": "Without keepdims broadcasting lines the numbers up with another axis.",
    "left_out": "A step of the formula is missing.",
    "max_for_sum": "max and sum of an axis are written alike.",
    "mean_for_sum": "They differ by the number of terms.",
    "n_minus_one": "ddof=1, as torch.std and var have it, estimates the spread of a population.",
    "negated": "The two terms are swapped.",
    "not_reduced": "What was broadcast is summed on the way back.",
    "number_more": "It is in the formula already.",
    "off_by_one": "It is counted from another number.",
    "one_of_many": "A loop that assigns with = where += is meant, or an index.",
    "order": "Where lengths are equal both ways fit; otherwise count the axes.",
    "overwritten": "The one was written into the memory of the other, which was still needed.",
    "power_missing": "The exponent is lost.",
    "shifted": "An index is off by one.",
    "sign": "A sign is lost on the way.",
    "slice": "A slice, or a loop that ends too early.",
    "stale": "The line that renews it has not been made yet, or wrote into another array.",
    "sum_for_mean": "They differ by the number of terms.",
    "term_missing": "The formula has both terms.",
    "term_more": "One term too many, or that of another formula.",
    "too_early": "The line stands before the one that renews what it reads.",
    "transposed": "Where lengths are equal both ways fit; otherwise count the axes.",
    "twice": "What it does is in the formula once.",
}
FIXES = {
    "one_of_many": "Sum over all of them.",
    "overwritten": "Make first what is made of it, or write into memory of its own.",
}
SIGNED = ("np.exp", "np.tanh", "sigmoid")
INSIDE = ("np.log", "np.sqrt", "np.cos", "np.square", "np.abs", *SIGNED)
REDUCED = {"sum": ("mean", "max"), "mean": ("sum", "max"), "max": ("sum", "mean")}
WORDS = {"sum": "the sum", "mean": "the mean", "max": "the largest"}


@dataclass(frozen=True)
class Change:
    """What stands in place of a part of a formula, and what that is called."""

    new: ast.expr
    kind: str
    title: str


@dataclass(frozen=True)
class Made:
    """A step as it was made, and the variables before and after it."""

    name: str
    lines: Lines
    before: Mapping[str, Any]
    after: Mapping[str, Any]

    def with_lines(self, text: str) -> dict[str, Lines]:
        names = {**self.lines.names, "transposed": transposed}
        return {self.name: Lines(text, names)}

    def with_statements(self, at: int, *new: str) -> dict[str, Lines]:
        """With others in place of that of a number."""
        every = [*self.texts[:at], *new, *self.texts[at + 1 :]]
        return self.with_lines("\n".join(every) or "pass")

    def with_formula(self, at: int, line: ast.Assign, value: ast.expr) -> dict[str, Lines]:
        """With another formula in the line of a number."""
        return self.with_statements(at, ast.unparse(ast.Assign(line.targets, value, lineno=0)))

    @cached_property
    def texts(self) -> list[str]:
        return [*map(ast.unparse, self.lines.statements)]

    @property
    def assigned(self) -> Iterator[tuple[int, ast.Assign]]:
        for number, one in enumerate(self.lines.statements):
            if isinstance(one, ast.Assign):
                yield number, one

    @property
    def values(self) -> list[ast.expr]:
        return [one.value for _, one in self.assigned]

    @cached_property
    def bound(self) -> set[str]:
        return {name for _, one in self.assigned for name in names_in(one.targets[0])}

    @cached_property
    def read(self) -> set[str]:
        return {name for _, one in self.assigned for name in names_in(one.value)}

    def slip(self, kind: str, title: str, replaces: Mapping[str, Lines]) -> Variation:
        """What to do and where that is explained, as for the step's other mistakes."""
        fix, see = self.explained
        fix = FIXES.get(kind, fix)
        mistake = Mistake(f"{self.name}.{kind}", title, CAUSES[kind], fix, see, replaces)
        usual = "factor" if kind == "factor" else "many" if kind in UNUSUAL else "usual"
        return Variation(mistake, rare=True, slip=usual)

    @cached_property
    def explained(self) -> tuple[str, str]:
        for one in CATALOGUE:
            if self.name in one.replaces:
                return one.mistake.fix, one.mistake.step
        return f"Write {'; '.join(self.lines.read)}.", ""


def names_in(node: ast.expr) -> set[str]:
    return {x.id for x in ast.walk(node) if isinstance(x, ast.Name)}


def slips(tape: Tape) -> Iterator[Variation]:
    """Every slip in the steps that a run has made, once for each program."""
    for made, after in programs(tape):
        for step in made:
            yield from of_step(step)
        if made:
            yield from of_arguments(made[0])
            yield from of_memory(made)
        for i, step in enumerate(made):
            yield from of_order(step, made[i + 1 :], after)


def programs(tape: Tape) -> Iterator[tuple[list[Made], Mapping[str, Any]]]:
    """The steps of each program that was run, and the variables behind the last of them."""
    done: set[Program] = set()
    tapes = [tape]
    while tapes:
        one = tapes.pop(0)
        tapes += [inner for nested in one.nested for inner in nested]
        if one.program in done or not one.before:
            continue
        done.add(one.program)
        every = [*one.before[1:], one.after]
        steps = zip(one.program.steps.items(), one.visited, one.before, every, strict=True)
        yield (
            [
                Made(name, lines, before, after)
                for (name, lines), visited, before, after in steps
                if name in visited and isinstance(lines, Lines)
            ],
            one.after,
        )


def of_step(step: Made) -> Iterator[Variation]:
    """In one line of it."""
    known = dict(step.before)
    for number, line in step.assigned:
        target, own = ast.unparse(line.targets[0]), names_in(line.targets[0])
        text = step.texts[number]

        for at, node in enumerate(ast.walk(line.value)):
            for change in changes(node, known) if isinstance(node, ast.expr) else ():
                value = exchanged(line.value, at, change.new)
                made = step.with_formula(number, line, value)
                yield step.slip(change.kind, f"{change.title} in {target}", made)
        for value, title in fewer_rows(line.value):
            made = step.with_formula(number, line, value)
            yield step.slip("slice", f"{title} in {target}", made)
        if own <= known.keys():
            without = step.with_statements(number)
            yield step.slip("left_out", f"the line `{plain(line)}` is left out", without)
            if own & names_in(line.value):
                twice = step.with_statements(number, text, text)
                yield step.slip("twice", f"the line `{plain(line)}` is made twice", twice)
        for name in sorted(own):
            for behind, kind, title in more(name, known, step.after.get(name)):
                also = step.with_statements(number, text, behind)
                yield step.slip(kind, title, also)
        known.update({name: step.after[name] for name in own if name in step.after})


def of_arguments(first: Made) -> Iterator[Variation]:
    """Arguments that are shifted or turned before anything is computed."""
    arrays = {x: y for x, y in first.before.items() if isinstance(y, np.ndarray) and y.ndim}

    def behind(line: str) -> dict[str, Lines]:
        return first.with_lines(f"{line}\n{first.lines.text}")

    for one, x in arrays.items():
        if x.dtype.kind not in "fV":
            continue
        for axis, what in ((-1, "column"), (-2, "position"), (0, "entry"))[: x.ndim]:
            for by, where in ((1, "before"), (-1, "after")):
                title = f"{one} is shifted: each {what} has that of the one {where}"
                rolled = behind(f"{one} = np.roll({one}, {by}, axis={axis})")
                yield first.slip("shifted", title, rolled)
        if x.ndim == 2 and x.shape[0] == x.shape[1]:
            yield first.slip("transposed", f"{one} is transposed", behind(f"{one} = {one}.T"))


def of_order(step: Made, later: Sequence[Made], after: Mapping[str, Any]) -> Iterator[Variation]:
    """What comes later reads what this step has renewed as it was before."""
    renewed = sorted(step.bound & step.before.keys())
    for other in later:
        said = "; ".join(other.lines.read)
        there = other.read & after.keys() <= step.before.keys() >= other.bound
        if there and (old := [name for name in renewed if name in other.read]):
            early = Lines(f"{other.lines.text}\n{step.lines.text}",
                          {**other.lines.names, **step.lines.names})  # fmt: skip
            title = f"`{said}` comes too early: with the {', '.join(old)} of before"
            replaces = {step.name: early, **other.with_lines("pass")}
            yield other.slip("too_early", title, replaces)
        for name in (one for one in renewed if isinstance(step.before[one], np.ndarray)):
            kept = step.with_lines(f"{name}_before = {name}\n{step.lines.text}")
            for number, line in other.assigned:
                for at, node in enumerate(ast.walk(line.value)):
                    if isinstance(node, ast.Name) and node.id == name:
                        value = exchanged(line.value, at, name_of(f"{name}_before"))
                        title = f"`{name}` in {ast.unparse(line.targets[0])} is that of before"
                        replaces = other.with_formula(number, line, value)
                        yield other.slip("stale", title, {**replaces, **kept})


def of_memory(made: Sequence[Made]) -> Iterator[Variation]:
    """One result is written into the memory of an array of which another one is made later: what
    lies between the two has been made before, or is made of what stands there now."""
    given = names_in(made[-1].values[-1]) if made[-1].values else set()
    ends = [step for step in made[1:-1] if step.bound & given]
    for over, other in ((a, b) for a in ends for b in ends if a is not b):
        if not over.read & over.before.keys() <= other.before.keys():
            continue
        for new in sorted(over.bound & given):
            for old, x in other.before.items():
                if old in given or not (is_float(x) and is_alike(x, over.after[new])):
                    continue
                between = derived(old, made[1 : made.index(other)])
                ways: list[Sequence[Made]] = [()] if old in other.read else []
                if any(step.bound & other.read for step in between):
                    ways.append(tuple(step for step in between if step is not over))
                for again in ways:
                    what = ", ".join(sorted(other.bound))
                    title = f"`{new}` stands for `{old}` in {what}: it was written over it"
                    lines = written_over(old, new, over, again, other)
                    yield other.slip("overwritten", title, {other.name: lines})


def derived(name: str, made: Sequence[Made]) -> list[Made]:
    """The steps whose results are made of a variable."""
    names, found = {name}, []
    for step in made:
        if names & step.read and name not in step.bound:
            found.append(step)
            names |= step.bound
    return found


def written_over(old: str, new: str, over: Made, again: Sequence[Made], other: Made) -> Lines:
    """The lines of a step where `new` is made first and takes the place of `old`. Whatever else
    they bind is left as it was."""
    own = {name for step in again for name in step.bound}
    kept = sorted((own | {old}) - other.bound)
    text = "\n".join(
        [
            f"{', '.join(f'{name}_kept' for name in kept)} = {', '.join(kept)}",
            over.lines.text,
            f"{old} = {new}",
            *(step.lines.text for step in again),
            other.lines.text,
            f"{', '.join(kept)} = {', '.join(f'{name}_kept' for name in kept)}",
        ]
    )
    names = {k: v for step in (over, *again, other) for k, v in step.lines.names.items()}
    return Lines(text, names)


# ---- a factor of any size ------------------------------------------------------------------------


@dataclass(frozen=True)
class Factor:
    """A part of a formula that is multiplied by some number.

    neutral : the number with which it is as it should be
    made : the slip with another number
    """

    neutral: float
    made: Callable[[float], Variation]


def factors(tape: Tape) -> Iterator[Factor]:
    """Everything that may be multiplied: what a line binds, a term of it, an array that is added
    to it."""
    for step in (step for made, _ in programs(tape) for step in made):
        known = dict(step.before)
        for number, line in step.assigned:
            yield from of_terms(step, number, line)
            known.update({x: step.after[x] for x in names_in(line.targets[0]) if x in step.after})
            if isinstance(line.targets[0], ast.Name):
                yield from of_whole(step, number, line, line.targets[0].id, known)


def of_terms(step: Made, number: int, line: ast.Assign) -> Iterator[Factor]:
    parts = [*ast.walk(line.value)]
    sums = (x for x in parts if isinstance(x, ast.BinOp) and isinstance(x.op, ast.Add | ast.Sub))
    for term in (term for one in sums for term in (one.left, one.right)):
        if isinstance(term, ast.Constant):
            continue

        def made(c: float, term: ast.expr = term) -> Variation:
            value = exchanged(line.value, parts.index(term), product(term, read(f"real({c!r})")))
            new = step.with_formula(number, line, value)
            what = f"{said(term)} in {ast.unparse(line.targets[0])}"
            return step.slip("factor", f"{what} is multiplied by {as_number(c, step.before)}", new)

        yield Factor(1.0, made)


def of_whole(
    step: Made, number: int, line: ast.Assign, name: str, known: Mapping[str, Any]
) -> Iterator[Factor]:
    value = known.get(name)
    if not isinstance(value, np.ndarray) or not is_float(value) or value.ndim == 0:
        return

    def behind(c: float, text: str, what: str) -> Variation:
        also = step.with_statements(number, step.texts[number], f"{name} = {text}")
        return step.slip("factor", what.format(as_number(c, step.before)), also)

    yield Factor(
        1.0, lambda c: behind(c, f"{name} * real({c!r})", f"`{name}` is multiplied by {{}}")
    )
    kept: list[str] = []
    for other, x in known.items():
        if other == name or not (is_float(x) and is_alike(x, value)):
            continue
        if any(is_same(x, known[one]) for one in kept):
            continue
        kept.append(other)
        yield Factor(
            0.0,
            lambda c, other=other: behind(  # type: ignore[misc]
                c,
                f"{name} + real({c!r}) * array({other})",
                f"{{}} times `{other}` is added to `{name}`",
            ),
        )


def as_number(c: float, known: Mapping[str, Any]) -> str:
    """A number, and what it is made of: an argument, a fraction, a root."""
    text, near = f"{c:.6g}", CLOSE * abs(c)
    for name, x in known.items():
        if type(x) is float and x not in (0.0, 1.0):
            for value, how in ((x, "{}"), (1 - x, "1 - {}"), (1 / x, "1 / {}"), (x * x, "{}²")):
                if abs(c - value) <= near:
                    return f"{text}, {how.format(name)}"
    for value, how in ((c, "{}"), (c * c, "sqrt({})")):
        whole = Fraction(value).limit_denominator(MOST)
        if (
            whole
            and abs(value - whole) <= near * abs(value / c)
            and abs(whole.numerator * whole.denominator) <= MOST
        ):
            shown = how.format(whole)
            return text if shown == text else f"{text} = {'-' if c < 0 < value else ''}{shown}"
    return text


# ---- parts of formulas ---------------------------------------------------------------------------


def exchanged(value: ast.expr, at: int, new: ast.expr) -> ast.expr:
    """A formula whose part of that number, as ast.walk counts, is another one. The parts in which
    it lies are copies."""
    old = next(islice(ast.walk(value), at, None))

    def copied(node: Any) -> Any:
        if node is old:
            return new
        if isinstance(node, list):
            parts = [copied(one) for one in node]
            return parts if any(a is not b for a, b in zip(parts, node, strict=True)) else node
        if not isinstance(node, ast.AST):
            return node
        fields = {name: copied(part) for name, part in ast.iter_fields(node)}
        if all(part is getattr(node, name) for name, part in fields.items()):
            return node
        return type(node)(**fields)

    found: ast.expr = copied(value)
    return found


def read(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def name_of(name: str) -> ast.expr:
    return ast.Name(name, ast.Load())


def said(node: ast.expr) -> str:
    return f"`{plain(node)}`"


def changes(node: ast.expr, known: Mapping[str, Any]) -> Iterator[Change]:
    """What may stand in place of a part."""
    if isinstance(node, ast.BinOp):
        yield from OPERATORS.get(type(node.op), nothing)(node.left, node.right)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield Change(node.operand, "sign", f"the minus before {said(node.operand)} is missing")
    elif isinstance(node, ast.Call):
        yield from of_call(node)
    elif isinstance(node, ast.Attribute) and node.attr == "T":
        yield Change(node.value, "transposed", f"{said(node.value)} is not transposed")
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        for other in COMPARISONS.get(type(node.ops[0]), ()):
            new = ast.Compare(node.left, [other()], node.comparators)
            yield Change(new, "comparison", f"{said(new)} stands for {said(node)}")
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield from of_name(node, known)


def nothing(a: ast.expr, b: ast.expr) -> Iterator[Change]:
    del a, b
    yield from ()


def product(a: ast.expr, b: ast.expr) -> ast.expr:
    return ast.BinOp(a, ast.Mult(), b)


def quotient(a: ast.expr, b: ast.expr) -> ast.expr:
    return ast.BinOp(a, ast.Div(), b)


def of_product(a: ast.expr, b: ast.expr) -> Iterator[Change]:
    for lost, kept in ((a, b), (b, a)):
        yield Change(kept, "factor_missing", f"the factor {said(lost)} is missing")
        twice = product(product(a, b), lost)
        yield Change(twice, "factor_twice", f"the factor {said(lost)} is there twice")
        divided = f"{said(lost)} divides instead of multiplying"
        yield Change(quotient(kept, lost), "factor_inverted", divided)


def of_quotient(a: ast.expr, b: ast.expr) -> Iterator[Change]:
    if plain(a) != "1":
        yield Change(a, "divisor_missing", f"the division by {said(b)} is missing")
    multiplied = f"{said(b)} multiplies instead of dividing"
    yield Change(product(a, b), "divisor_inverted", multiplied)
    if not plain(b).startswith("np.sqrt("):  # then the root may be missing as well
        yield Change(quotient(quotient(a, b), b), "divisor_twice", f"{said(b)} divides twice")


def of_sum(a: ast.expr, b: ast.expr) -> Iterator[Change]:
    turned = f"the sign of {said(b)} is flipped: subtracted instead of added"
    yield Change(ast.BinOp(a, ast.Sub(), b), "sign", turned)
    for lost, kept in ((a, b), (b, a)):
        yield Change(kept, "term_missing", f"the term {said(lost)} is missing")


def of_difference(a: ast.expr, b: ast.expr) -> Iterator[Change]:
    added = f"the sign of {said(b)} is flipped: added instead of subtracted"
    yield Change(ast.BinOp(a, ast.Add(), b), "sign", added)
    turned = f"the sign is flipped: {said(b)} minus {said(a)}"
    yield Change(ast.BinOp(b, ast.Sub(), a), "negated", turned)
    yield Change(a, "term_missing", f"the term {said(b)} is missing: it is not subtracted")
    minus = ast.UnaryOp(ast.USub(), b)
    yield Change(minus, "term_missing", f"the term {said(a)} is missing before the minus")
    yield Change(b, "term_missing", f"{said(b)} stands alone, for the difference")


def of_power(a: ast.expr, b: ast.expr) -> Iterator[Change]:
    what = "the square" if plain(b) == "2" else f"the power {said(b)}"
    yield Change(a, "power_missing", f"{what} of {said(a)} is missing")


def of_matrices(a: ast.expr, b: ast.expr) -> Iterator[Change]:
    for one, (left, right) in ((a, (None, b)), (b, (a, None))):
        if not plain(one).startswith("transposed(") and not plain(one).endswith(".T"):
            turned = ast.Call(name_of("transposed"), [one], [])
            new = ast.BinOp(left or turned, ast.MatMult(), right or turned)
            yield Change(new, "transposed", f"{said(one)} is transposed")
    swapped = f"{said(b)} stands before {said(a)} in the product"
    yield Change(ast.BinOp(b, ast.MatMult(), a), "order", swapped)


OPERATORS: dict[type[ast.operator], Callable[[ast.expr, ast.expr], Iterator[Change]]] = {
    ast.Mult: of_product,
    ast.Div: of_quotient,
    ast.Add: of_sum,
    ast.Sub: of_difference,
    ast.Pow: of_power,
    ast.MatMult: of_matrices,
}
COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Gt: (ast.Lt, ast.GtE),
    ast.Lt: (ast.Gt, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
}


def of_call(node: ast.Call) -> Iterator[Change]:
    function, args = ast.unparse(node.func), node.args
    if isinstance(node.func, ast.Attribute) and node.func.attr in REDUCED:
        given = {one.arg or "": one.value for one in node.keywords}
        yield from of_reduction(node.func.value, node.func.attr, given)
    elif function == "mean" and len(args) == 1:
        yield from of_reduction(args[0], "mean", {"axis": read("-1"), "keepdims": read("True")})
    elif function in INSIDE and len(args) == 1:
        name = function.removeprefix("np.")
        if function != "sigmoid":
            yield Change(args[0], "function_missing", f"{name} is missing")
        for other in SIGNED if function in SIGNED else ():
            minus = ast.UnaryOp(ast.USub(), args[0]) if other == function else args[0]
            new = ast.Call(read(other), [minus], [])
            if other == function:
                yield Change(new, "sign", f"{said(new)} stands for {said(node)}: a sign")
            elif other != "sigmoid":
                what = f"{other.removeprefix('np.')} stands for {name}"
                yield Change(new, "another_function", what)
    elif function == "transposed":
        yield Change(args[0], "transposed", f"{said(args[0])} is not transposed")
    elif function in ("np.where", "of_seen"):
        for kept in args[1:]:
            yield Change(kept, "condition_missing", f"{said(args[0])} is not looked at")
        if len(args) == 3:
            new = ast.Call(node.func, [args[0], args[2], args[1]], [])
            title = f"{said(args[0])} is taken the other way round"
            yield Change(new, "condition_inverted", title)
    elif function in ("np.minimum", "np.maximum"):
        other = {"np.minimum": "np.maximum", "np.maximum": "np.minimum"}[function]
        for kept, lost in (args, args[::-1]):
            yield Change(kept, "bound_missing", f"the bound {said(lost)} is missing")
        title = f"{other[3:]} stands for {function[3:]}"
        yield Change(ast.Call(read(other), args, []), "bound_inverted", title)
    elif function == "np.clip":
        yield Change(args[0], "bound_missing", f"{said(args[0])} is not clipped")


def of_reduction(x: ast.expr, how: str, given: Mapping[str, ast.expr]) -> Iterator[Change]:
    def reduced(how: str, given: Mapping[str, ast.expr]) -> ast.expr:
        keywords = [ast.keyword(name, value) for name, value in given.items()]
        return ast.Call(ast.Attribute(x, how, ast.Load()), [], keywords)

    this = f"{WORDS[how]} of {said(x)}"
    for other in REDUCED[how]:
        kind = "max_for_sum" if "max" in (other, how) else f"{other}_for_{how}"
        title = f"{WORDS[other]} of {said(x)} stands for {WORDS[how]}"
        yield Change(reduced(other, given), kind, title)
    old = plain(given["axis"]) if "axis" in given else ""
    for new in ("-1", "-2", "0", "-3", ""):
        if new != old:
            axis = {"axis": read(new)} if new else {}
            rest = {name: value for name, value in given.items() if name != "axis"}
            title = f"{this} runs over {axis_said(new)}, not over {axis_said(old)},"
            yield Change(reduced(how, axis | rest), "another_axis", title)
    if how == "sum" and old not in ("", "-1"):
        kept = given.get("keepdims") is not None
        for which, index in (("first", "[0]" if kept else "0"), ("last", "[-1]" if kept else "-1")):
            one = read(f"np.take({ast.unparse(x)}, {index}, axis={old})")
            title = f"only the {which} one counts in {this}"
            yield Change(one, "one_of_many", title)
    if how == "mean" and old == "-1":
        fewer = quotient(reduced("sum", given), read(f"np.shape({ast.unparse(x)})[-1] - 1"))
        yield Change(fewer, "n_minus_one", f"{this} divides by n - 1 instead of n")
    if "keepdims" in given:
        rest = {name: value for name, value in given.items() if name != "keepdims"}
        title = f"{this} loses its axis (keepdims), and another row meets it"
        yield Change(reduced(how, rest), "keepdims_lost", title)
    yield Change(x, "not_reduced", f"{this} is missing: nothing is summed")


def axis_said(axis: str) -> str:
    named = {"": "all numbers", "-1": "the last axis", "0": "the first axis"}
    return named.get(axis, f"axis {axis}")


def of_name(node: ast.Name, known: Mapping[str, Any]) -> Iterator[Change]:
    value = known.get(node.id)
    if type(value) is int and node.id != "ignore_index":
        for op, what in ((ast.Add(), "large"), (ast.Sub(), "small")):
            new: ast.expr = ast.BinOp(node, op, ast.Constant(1))
            yield Change(new, "off_by_one", f"`{node.id}` is one too {what}")
    if not isinstance(value, float | np.ndarray):
        return
    kept: list[str] = []
    for other, x in [*known.items()][::-1]:
        if is_alike(x, value) and not any(is_same(x, known[one]) for one in (*kept, node.id)):
            kept.append(other)
    for other in kept[:OTHERS]:
        new = name_of(other)
        if isinstance(value, np.ndarray) and known[other].dtype != value.dtype:
            new = ast.Call(name_of("array"), [new], [])
        yield Change(new, "another_variable", f"`{other}` stands for `{node.id}`")
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            title = f"`{other}` multiplies `{node.id}` as well"
            yield Change(product(node, new), "factor_more", title)
    if isinstance(value, np.ndarray) and value.dtype.kind == "i" and value.size > 1:
        for by, where in ((1, "before"), (-1, "after")):
            title = f"`{node.id}` is shifted: each is that of the position {where}"
            yield Change(read(f"np.roll({node.id}, {by}, axis=-1)"), "shifted", title)


def is_alike(x: Any, value: Any) -> bool:
    """Whether one may stand where the other should."""
    if isinstance(value, float):
        return isinstance(x, float)
    if not (isinstance(x, np.ndarray) and isinstance(value, np.ndarray) and value.ndim):
        return False
    kinds = {"i" if one.dtype.kind in "iu" else one.dtype.kind == "b" for one in (x, value)}
    return x.shape == value.shape and len(kinds) == 1


def is_float(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype.kind in "fV"


def is_same(x: Any, value: Any) -> bool:
    return x is value or (np.shape(x) == np.shape(value) and bool(np.all(x == value)))


# ---- lines behind one, fewer rows ----------------------------------------------------------------


def more(name: str, known: Mapping[str, Any], value: Any) -> Iterator[tuple[str, str, str]]:
    """Lines behind one that binds a name: something is added to it, or multiplies it."""
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f" or value.ndim == 0:
        return
    arrays = {
        one: x for one, x in known.items() if isinstance(x, np.ndarray) and x.dtype.kind in "fV"
    }
    kept: list[str] = []
    for other, x in arrays.items():
        of_rows = x.shape == (*value.shape[:-1], 1)
        if not (of_rows or x.shape == value.shape) or any(is_same(x, arrays[y]) for y in kept):
            continue
        kept.append(other)
        cast = other if x.dtype == value.dtype else f"array({other})"
        yield f"{name} = {name} * {cast}", "factor_more", f"`{other}` multiplies {name} as well"
        if of_rows:
            yield f"{name} = {name} / {cast}", "factor_more", f"`{other}` divides {name} as well"
            continue
        yield f"{name} = {name} + {cast}", "term_more", f"`{other}` is added to {name}"
        yield f"{name} = {name} - {cast}", "term_more", f"`{other}` is subtracted from {name}"
    for other, x in known.items():
        if type(x) is float and x not in (0.0, 1.0):
            for sign, how in (("*", "multiplied"), ("/", "divided")):
                title = f"{name} is {how} by {other} once more"
                yield f"{name} = {name} {sign} real({other})", "number_more", title
    widest = max(arrays, key=lambda one: (arrays[one].ndim, arrays[one].size), default=name)
    of = arrays.get(widest, value)
    for axis, which in ((-1, "last"), (-2, "last but one"), (0, "first"))[: of.ndim]:
        for sign, how in (("/", "divided"), ("*", "multiplied")):
            title = f"{name} is {how} by {of.shape[axis]}, the length of {widest}'s {which} axis"
            yield f"{name} = {name} {sign} np.shape({widest})[{axis}]", "number_more", title
    for text, what in (
        (f"2 * {name}", "twice as large"),
        (f"{name} / 2", "half as large"),
        (f"{name} * {name}", "squared"),
        (f"np.sqrt({name})", "under a root"),
        (f"np.abs({name})", "without its sign"),
    ):
        yield f"{name} = {text}", "changed", f"{name} is {what}"


FIRST, LAST = "[..., 1:, :]", "[..., :-1, :]"
SLICES = (
    (LAST, LAST, "the last position of each sequence is left out"),
    (FIRST, FIRST, "the first position of each sequence is left out"),
    ("[..., :1, :]", "[..., :1, :]", "only the first position of each sequence counts"),
    ("[..., -1:, :]", "[..., -1:, :]", "only the last position of each sequence counts"),
    ("[-1:]", "[-1:]", "only the last entry of the first axis counts"),
    ("[:1]", "[:1]", "only the first entry of the first axis counts"),
    ("[:-1]", "[:-1]", "the last entry of the first axis is left out"),
    (FIRST, LAST, "the two arrays are shifted by one position"),
    (LAST, FIRST, "the two arrays are shifted by one position, the other way,"),
)


def fewer_rows(value: ast.expr) -> Iterator[tuple[ast.expr, str]]:
    """A sum over rows that leaves some out, or pairs those of two places."""
    at = [i for i, node in enumerate(ast.walk(value)) if is_rows(node)]
    for *slices, title in SLICES:
        if not at or (slices[0] != slices[1] and len(at) < 2):
            continue
        new = value
        for number, kept in reversed([*zip(at, slices, strict=False)]):
            node = list(ast.walk(new))[number]
            assert isinstance(node, ast.Call)
            new = exchanged(new, number, read(f"rows_of(({ast.unparse(node.args[0])}){kept})"))
        yield new, title


def is_rows(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and plain(node.func) == "rows_of"
