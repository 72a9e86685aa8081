"""A text that is read, changed and read again: all of `sf.explore` but what shows it."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from simdformer.arguments import read_whole, shown
from simdformer.interpret.explorer.changes import ACTIVATION, Change, edit_of, read_changes
from simdformer.interpret.page.content import Reading, read_text
from simdformer.interpret.page.look import MOST_TOKENS, Page, page_of
from simdformer.interpret.subject import Subject, check_model, read_subject, read_target
from simdformer.models.trace import Trace
from simdformer.text.sampling import Sampler

__all__ = ["Exploration"]

CHEAP_LENS = 1e9  # multiply-adds: some 0.05 seconds


@dataclass(frozen=True, eq=False)
class Read:
    """A text with its ids; what the model has read of it where changes take something from it."""

    text: str
    subject: Subject

    @property
    def ids(self) -> list[int]:
        return [int(id) for id in self.subject.ids]

    @cached_property
    def trace(self) -> Trace:
        return self.subject.run([f"layers.*.{name}" for name in ACTIVATION.values()])[1]


@dataclass(frozen=True)
class State:
    """What is shown, or is to be shown."""

    text: Read
    other: Read | None = None
    changes: tuple[Change, ...] = ()


class Exploration:
    """`write`, `rewrite`, `append`, `sample`, `compare` and `change` say what is wanted; `show`
    computes it.

    before, now : Reading
        The text as the model reads it, and with the changes.
    wanted, shown : State
        They are the same after `show`. Where it fails, or is ended, what was shown stays, and
        `give_up` wants no more than that.
    note : str
        What the last call has done beyond what it was told, in a sentence.
    run : dict, or None
        The curves of a run, as `curves` gives them.
    """

    before: Reading
    now: Reading
    run: dict[str, Any] | None = None

    def __init__(
        self,
        model: Any,
        text: Any,
        other: Any = None,
        *,
        target: str | int | None = None,
        against: str | int | None = None,
        max_tokens: int = MOST_TOKENS,
    ) -> None:
        self.model, self.target, self.against = model, target, against
        self.max_tokens = read_whole("explore", "max_tokens", max_tokens)
        self.shown: State | None = None
        self.wanted = State(self._read("text", text))
        self.note = ""
        subject = self.wanted.text.subject
        for name, word in (("target", target), ("against", against)):
            if word is not None:
                read_target(subject, name, word)
        if other is not None:
            self.compare(other)
        self.show()

    # ---- what is wanted --------------------------------------------------------------------------

    def write(self, text: Any) -> None:
        """Another text, or ids (L,). Changes that do not fit it are taken back."""
        self._write(self._read("text", text))

    def rewrite(self, at: int, piece: str) -> None:
        """Another piece of text in the place of token `at`; the whole text is read again."""
        read = self.wanted.text
        tokenizer, tokens = read.subject.tokenizer, read.subject.tokens
        if tokenizer is None:
            self.write(" ".join([*tokens[:at], piece, *tokens[at + 1 :]]))
            return
        text, front, with_it = (
            tokenizer.decode(read.ids[:end], skip_special=True) for end in (None, at, at + 1)
        )
        if not text.startswith(front) or not text.startswith(with_it):
            raise ValueError(
                f"explore: token {at} is a part of a letter, needs whole ones; edit the text itself"
            )
        self.write(front + piece + text[len(with_it) :])

    def append(self, token: str | int) -> None:
        """One more token: its text or its id."""
        ids = [*self.wanted.text.ids, read_target(self.wanted.text.subject, "token", token)]
        self._write(self._read("text", ids))

    def sample(self, sampler: Sampler) -> None:
        """One more token, drawn from what is shown at the end, changes included."""
        self.show()
        self.append(sampler(self.now.logits[-1], self.wanted.text.ids))

    def compare(self, other: Any) -> None:
        """A second text to take activations from, or ids (L,); "" or None: none."""
        is_none = other is None or (isinstance(other, str) and not other)
        read = None if is_none else self._read("other", other)
        self._fit(replace(self.wanted, other=read))

    def change(self, edits: Any) -> None:
        """The changes, all of them, as a list of dicts."""
        length = len(self.wanted.text.ids)
        config = self.wanted.text.subject.transformer.config
        changes = read_changes(edits, config, length)
        if changes and self.is_trained:
            raise ValueError(
                "explore: edits change a model that is trained, and its gradients are those "
                "without changes; explore model.language_model(model.tokenizer)"
            )
        wanted = replace(self.wanted, changes=changes)
        if any(not fits(change, wanted) for change in changes):
            raise ValueError(why_not(wanted))
        self.wanted, self.note = wanted, ""

    def toggle(self, edit: Any) -> None:
        """One change more; in the place of one at the same place; or away, where it is there."""
        edits = [change.given for change in self.wanted.changes]
        place = {**edit, "value": None} if isinstance(edit, dict) else edit
        kept = [one for one in edits if {**one, "value": None} != place]
        self.change(kept if edit in edits else [*kept, edit])

    def _write(self, text: Read) -> None:
        self._fit(replace(self.wanted, text=text))

    def _fit(self, wanted: State) -> None:
        """Takes back what does not fit."""
        kept = tuple(change for change in wanted.changes if fits(change, wanted))
        gone = [one.label(self.tokens) for one in wanted.changes if one not in kept]
        reason = "taken back, because it does not fit this text: "
        self.note = reason + ", ".join(gone) if gone else ""
        self.wanted = replace(wanted, changes=kept)

    def _read(self, name: str, text: Any) -> Read:
        """A text or ids; without a tokenizer, a text is ids between blanks."""
        has_words = getattr(self.model, "tokenizer", None) is not None
        if not has_words:
            check_model("explore", self.model)  # what is no model has no tokenizer either
        if isinstance(text, str):
            ids = self.model.tokenizer.encode(text) if has_words else numbers_of(name, text)
        else:
            ids = text
        if not np.size(ids):
            raise ValueError(f"explore: {name} is empty, needs at least one token; type something")
        subject = read_subject("explore", self.model, ids)
        most = min(self.max_tokens, subject.transformer.config.max_seq_len)
        if len(subject.ids) > most:
            raise ValueError(
                f"explore: {name} has {len(subject.ids)} tokens, needs at most {most}; shorten it"
                + ("" if most < self.max_tokens else ", or allow more with max_tokens=")
            )
        if isinstance(text, str):
            return Read(text, subject)
        if not has_words:
            return Read(" ".join(subject.tokens), subject)
        return Read(subject.tokenizer.decode(subject.ids, skip_special=True), subject)

    def read_again(self) -> None:
        """The same text, with the weights that a model that is trained has by now."""
        old = self.wanted.text
        again = read_subject("explore", self.model, old.subject.ids)
        self.wanted, self.note = replace(self.wanted, text=Read(old.text, again)), ""

    # ---- what is shown ---------------------------------------------------------------------------

    def show(self) -> None:
        """Computes what is wanted, where it is not shown yet."""
        wanted, old = self.wanted, self.shown
        if wanted == old:
            return
        subject = wanted.text.subject
        about = f"{subject.transformer.config.summary}, {len(subject.ids)} tokens"
        is_read = old is not None and old.text is wanted.text
        told = (subject, about, self.target, self.against)
        at = None if lens_is_cheap(subject) else ()
        before = self.before if is_read else read_text(*told, lens_at=at)
        now = before
        if wanted.changes:
            takes = any(change.value == "other" for change in wanted.changes)
            other = wanted.other.trace if takes and wanted.other is not None else {}
            edit = edit_of(wanted.changes, other)
            now = read_text(*told, edit=edit, before=before, lens_at=at)
        self.before, self.now, self.shown = before, now, wanted

    def fill_lens(self, positions: Iterable[int] | None = None) -> None:
        """Computes the lens of what is shown at these positions, or at all. Where it is ended, what
        has been computed is kept."""
        length = len(self.now.trace.ids)
        at = [one for one in (range(length) if positions is None else positions) if one < length]
        if self.now.lens.known[:, at].all() and self.before.lens.known[:, at].all():
            return
        try:
            self.now.lens.fill(at, self.before.lens)
        finally:
            is_changed = self.now is not self.before
            self.before = self.before.with_lens()
            self.now = self.now.with_lens() if is_changed else self.before

    def give_up(self) -> None:
        """Wants what is shown."""
        assert self.shown is not None  # the first text has been read
        self.wanted = self.shown

    @property
    def is_trained(self) -> bool:
        """Whether the weights may change between two readings."""
        return self.wanted.text.subject.trainable is not None

    @property
    def tokens(self) -> list[str]:
        return self.wanted.text.subject.tokens

    @property
    def labels(self) -> list[str]:
        """The changes that are wanted, in a few words each."""
        return [change.label(self.tokens) for change in self.wanted.changes]

    def page(self) -> Page:
        """What is shown, as a file, with all of the lens."""
        self.fill_lens()
        about = str(self.now.data["about"])
        return Page(page_of(self.now, self.before, self.labels, self.run), about)

    def code(self, layer: int, head: int, position: int) -> str:
        """Python that computes what is shown of this head and position. `model` is what was given
        to `sf.explore`."""
        state, said = self.wanted, int(self.before.said[position])
        words = [said if self.target is None else self.target, self.against]
        reads = ["model = model.language_model(model.tokenizer)  # its weights of now"]
        named = ", ".join(repr(word) for word in words if word is not None)
        lines = [
            "import simdformer as sf",
            "",
            *(reads if self.is_trained else []),
            f"text = {self._literal(state.text)}",
            *self._lines_of_changes(state),
            f"layer, head, position = {layer}, {head}, {position}",
            "",
            "before, _ = model.run_with_cache(text)",
            "logits, trace = model.run_with_cache(text, edit=edit)",
            "probabilities = sf.softmax(logits[position])",
            'pattern = trace["pattern", layer][head]',
            f"lens = sf.logit_lens(model, text, target={said}, edit=edit)",
            f"parts = sf.attribute(model, text, {named}, position=position, edit=edit)",
        ]
        return "\n".join(lines)

    def _lines_of_changes(self, state: State) -> list[str]:
        lines = []
        if any(change.value == "other" for change in state.changes):
            assert state.other is not None
            lines.append(f"_, other = model.run_with_cache({self._literal(state.other)})")
        by_name: dict[str, list[str]] = {}
        for change in state.changes:
            by_name.setdefault(change.name, []).append(change.line)
        for number, of_name in enumerate(by_name.values()):
            lines += ["", f"def change_{number}(x):", *(f"    {line}" for line in of_name)]
        names = ", ".join(f'"{name}": change_{number}' for number, name in enumerate(by_name))
        return [*lines, *([""] if by_name else []), f"edit = {{{names}}}"]

    def _literal(self, read: Read) -> str:
        """The text in quotes, if the tokenizer makes these ids of it, or the ids."""
        tokenizer = read.subject.tokenizer
        is_text = tokenizer is not None and list(tokenizer.encode(read.text)) == read.ids
        return repr(read.text) if is_text else repr(read.ids)


def lens_is_cheap(subject: Subject) -> bool:
    """Whether all of the lens is computed with every answer, rather than where it is looked at."""
    config = subject.transformer.config
    cells = config.num_layers * len(subject.ids)
    return cells * config.hidden_size * config.vocab_size <= CHEAP_LENS


def fits(change: Change, state: State) -> bool:
    """Whether the text has such a position, and the second text as many."""
    length = len(state.text.ids)
    if change.value == "other" and (state.other is None or len(state.other.ids) != length):
        return False
    return change.part != "position" or (change.at is not None and change.at < length)


def why_not(state: State) -> str:
    if state.other is None:
        return "explore: there is no second text, needs one to take an activation from; give other"
    return (
        f"explore: other has {len(state.other.ids)} tokens, needs {len(state.text.ids)}, as many "
        "as text, so that positions mean the same"
    )


def numbers_of(name: str, text: str) -> list[int]:
    words = text.replace(",", " ").split()
    if not all(word.isdecimal() for word in words):
        raise ValueError(
            f"explore: {name} is {shown(text)}, needs ids such as 7 12 45, as the model has "
            "no tokenizer"
        )
    return [int(word) for word in words]
