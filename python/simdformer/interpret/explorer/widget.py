"""The widget of `sf.explore`. The browser sends what was clicked on and typed; a thread computes
it, so that it can be ended; what has changed in the page's memory is sent back."""

import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event, RLock, Thread
from typing import Any

import anywidget
import numpy as np
import traitlets

from simdformer.interpret.explorer.curves import curves
from simdformer.interpret.explorer.exploration import Exploration
from simdformer.interpret.page.content import Reading
from simdformer.interpret.page.look import bundle, text_of
from simdformer.models.progress import Progress, watched
from simdformer.text.sampling import Sampler
from simdformer.training.log import LOG

__all__ = ["Explorer"]

QUIET_SECONDS = 0.3  # before a bar is shown
BETWEEN_BARS = 0.1  # seconds
BETWEEN_LOOKS = 1.0  # seconds, at a log
GAP = 64  # numbers that are the same between two that are not, and still are sent with them


def changed(old: bytes, new: bytes) -> tuple[list[list[int]], bytes]:
    """Where the new bytes differ from as many old ones: [begin, end] of each piece, and the pieces
    behind each other."""
    size = 4  # bytes of most numbers, and what all pieces are made of
    before, after = (np.frombuffer(some, np.uint32) for some in (old, new))
    where = np.flatnonzero(before != after)
    if not where.size:
        return [], b""
    cuts = np.flatnonzero(np.diff(where) > GAP)
    begins = size * where[np.concatenate([[0], cuts + 1])]
    ends = size * (where[np.concatenate([cuts, [-1]])] + 1)
    places = np.stack([begins, ends], axis=1).tolist()
    return places, b"".join(new[begin:end] for begin, end in places)


def script() -> str:
    """The module that a notebook runs: the page's scripts, its style, and what is around it."""
    texts = {
        "STYLE": text_of("page.css"),
        "VIEWS": text_of("views.html"),
        "CONTROLS": text_of("controls.html"),
    }
    constants = [f"const {name} = {json.dumps(text)};" for name, text in texts.items()]
    return "\n".join([*constants, bundle("notebook")])


class Code(str):
    """Python, which a notebook shows as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class Ended(Exception):
    """A computation that nobody waits for."""


class Explorer(anywidget.AnyWidget):
    """What `explore` gives, and explains."""

    _esm = script()
    text = traitlets.Unicode()
    other = traitlets.Unicode()
    edits = traitlets.List(traitlets.Dict())
    trace = traitlets.Any(read_only=True)
    layer = traitlets.Int().tag(sync=True)
    head = traitlets.Int().tag(sync=True)
    position = traitlets.Int().tag(sync=True)

    def __init__(self, exploration: Exploration) -> None:
        self._exploration = exploration
        self._lock = RLock()  # of the exploration
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="explorer")
        self._asked = self._stopped = 0  # requests of browsers, and up to which they are stopped
        self._watching = Event()  # set where a log is not looked at any more
        self._sampler = Sampler(temperature=1.0)
        self._sent: tuple[Reading, Reading] | None = None
        self._words_sent = 0
        self._is_publishing, self._began, self._told = False, 0.0, 0.0
        start = exploration.now.data["start"]
        position = len(exploration.tokens) - 1
        super().__init__(**start, position=position)
        self._publish()
        self.on_msg(self._hear)

    # ---- for Python ------------------------------------------------------------------------------

    def append(self, token: str | int) -> None:
        """Writes one more token, by its text or its id."""
        self._now(lambda: self._exploration.append(token))

    def sample(self, *, temperature: float = 1.0, seed: int | None = None) -> None:
        """Draws one more token from what the model says with its changes. The same temperature and
        seed go on with the same random numbers."""
        self._now(lambda: self._exploration.sample(self._sampler_of(temperature, seed)))

    def code(self) -> Code:
        """The Python that computes what is shown at this layer, head and position; `model` in it is
        what `explore` was given."""
        return Code(self._exploration.code(self.layer, self.head, self.position))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes what is shown as a file that needs no network, with all of the lens, and gives its
        path."""
        with self._lock:
            page = self._exploration.page()
            self._publish()
        return page.save(path)

    def update(self, log: Any) -> None:
        """Shows the curves of a run as far as it is, and the text as a model that is trained reads
        it with its weights of now. For each step, or every few, of a loop of your own.

        log : the losses; or a dict a step, of which "step", "loss", "val_loss", "lr" and "norm" are
            shown; or the directory of `simdformer train`, or its log.jsonl. ValueError: no step.
        """
        explored = self._exploration
        with self._lock:
            explored.run = curves(log)
            if explored.is_trained:
                self._now(explored.read_again)  # its page has the curves
            else:
                self._send_run()

    def watch(self, directory: str | os.PathLike[str] | None) -> None:
        """Shows the curves of a run of `simdformer train` in another process: its log is looked at
        every second, and may not be there yet. None ends that."""
        self._watching.set()
        self._watching = Event()
        if directory is not None:
            arguments = Path(directory), self._watching
            Thread(target=self._look_at, args=arguments, name="explorer log", daemon=True).start()

    def _look_at(self, directory: Path, ended: Event) -> None:
        seen = None
        while not ended.wait(0 if seen is None else BETWEEN_LOOKS):
            file = directory / LOG if directory.is_dir() else directory
            size = file.stat().st_size if file.is_file() else 0
            if size and size != seen:
                with self._lock, suppress(ValueError):  # no whole line yet
                    self._exploration.run = curves(directory)
                    self._send_run()
            seen = size

    def __repr__(self) -> str:
        changes = ", ".join(self._exploration.labels) or "nothing changed"
        return f"Explorer({self._exploration.now.data['title']!r}, {changes})"

    @traitlets.validate("layer", "head", "position")
    def _in_range(self, proposal: Any) -> int:
        data, name = self._exploration.now.data, proposal["trait"].name
        count = len(data["tokens"]) if name == "position" else int(data[f"{name}s"])
        number = int(proposal["value"])
        if not -count <= number < count:
            raise traitlets.TraitError(f"explore: {name} is {number}, needs 0 to {count - 1}")
        return number % count

    @traitlets.observe("text", "other", "edits")
    def _set(self, change: Any) -> None:
        if self._is_publishing:
            return
        explored = self._exploration
        do = {"text": explored.write, "other": explored.compare, "edits": explored.change}
        self._now(lambda: do[change["name"]](change["new"]))

    def _now(self, operation: Callable[[], None]) -> None:
        """Does it at once."""
        with self._lock:
            try:
                operation()
                self._exploration.show()
            except BaseException:
                self._exploration.give_up()
                self._set_traits()
                raise
            self._publish()

    # ---- for the browser -------------------------------------------------------------------------

    def _hear(self, _: Any, content: Any, buffers: Any) -> None:
        """A message of the browser. What takes time is left to the thread."""
        self.send({"kind": "heard"})
        if content["do"] == "open":
            self._send_page(content["view"])
        elif content["do"] == "stop":
            self._stopped = self._asked
        else:
            self._asked += 1
            self._worker.submit(self._answer, self._asked, content)

    def _answer(self, number: int, content: dict[str, Any]) -> None:
        """What is asked for in between is computed at once with the last; a sample is drawn."""
        with self._lock:
            self._began = self._told = time.monotonic()
            is_sample = content["do"] == "sample"
            try:
                with watched(lambda bar: self._watch(bar, number, may_end=not is_sample)):
                    self._do(content)
                    if number < self._asked:
                        return
                    self._exploration.show()
                    if content["do"] == "lens":
                        self._exploration.fill_lens(content["at"])
            except Ended:
                if number <= self._stopped:
                    self._exploration.give_up()
                    self._publish()  # what has been computed of the lens
                    self._say("stopped: shown is what was there before")
            except Exception as error:  # a sentence, and never a widget that is dead
                self._exploration.give_up()
                self._say(str(error).removeprefix("explore: "))
            else:
                self._publish()

    def _do(self, content: dict[str, Any]) -> None:
        explored = self._exploration
        match content["do"]:
            case "write":
                explored.write(content["text"])
            case "rewrite":
                explored.rewrite(content["at"], content["text"])
            case "append":
                explored.append(explored.now.words.id_of(content["word"]))
            case "sample":
                explored.sample(self._sampler_of(content["temperature"], content["seed"]))
            case "compare":
                explored.compare(content["other"])
            case "toggle":
                explored.toggle(content["edit"])
            case "take back":
                edits = [change.given for change in explored.wanted.changes]
                at = content["at"]
                explored.change([] if at is None else edits[:at] + edits[at + 1 :])

    def _sampler_of(self, temperature: float, seed: int | None) -> Sampler:
        wanted = Sampler(temperature=temperature, seed=seed)
        if wanted != self._sampler:  # the random numbers are not compared
            self._sampler = wanted
        return self._sampler

    def _watch(self, bar: Progress, number: int, *, may_end: bool) -> None:
        if number <= self._stopped or (may_end and number < self._asked):
            raise Ended
        time_now = time.monotonic()
        if time_now - self._began > QUIET_SECONDS and time_now - self._told > BETWEEN_BARS:
            self._told = time_now
            self.send({"kind": "busy", "what": bar.what, "done": bar.done, "total": bar.total})

    def _say(self, sentence: str) -> None:
        self.send({"kind": "says", "sentence": sentence, **self._texts()})

    # ---- what is sent ----------------------------------------------------------------------------

    def _texts(self) -> dict[str, Any]:
        wanted = self._exploration.wanted
        return {
            "text": wanted.text.text,
            "other": "" if wanted.other is None else wanted.other.text,
        }

    def _publish(self) -> None:
        """Sends what is new to the browser, and sets the traitlets."""
        explored, sent = self._exploration, self._sent
        self._sent = explored.before, explored.now
        if sent is None or sent[0].trace is not explored.before.trace:
            self._words_sent = len(explored.now.words.known)
            self._send_page()
        else:
            self._send_changes(*sent)
        self._set_traits()

    def _set_traits(self) -> None:
        explored = self._exploration
        last = len(explored.now.data["tokens"]) - 1
        old = -1 if self.trace is None else len(self.trace.ids) - 1
        self._is_publishing = True
        try:
            self.set_trait("trace", explored.now.trace)
            self.text, self.other = self._texts().values()
            self.edits = [change.given for change in explored.wanted.changes]
            self.position = last if self.position == old else min(self.position, last)
        finally:
            self._is_publishing = False

    def _send_page(self, view: str | None = None) -> None:
        """Everything, to one view or to all."""
        explored = self._exploration
        data = {**explored.now.data, "changes": explored.labels, "run": explored.run}
        told = {"kind": "page", "view": view, "data": data, "sentence": explored.note}
        self.send(
            {**told, **self._texts()}, buffers=[explored.now.numbers, explored.before.numbers]
        )

    def _send_run(self) -> None:
        told = {"kind": "run", "run": self._exploration.run, "sentence": self._exploration.note}
        self.send({**told, **self._texts()})

    def _send_changes(self, old_before: Reading, old: Reading) -> None:
        """What differs from the readings that were sent."""
        explored = self._exploration
        words = explored.now.words.known
        pieces = [
            changed(old.numbers, explored.now.numbers),
            changed(old_before.numbers, explored.before.numbers),
        ]
        told = {
            "kind": "numbers",
            "places": [places for places, _ in pieces],
            "words": {"from": self._words_sent, "more": words[self._words_sent :]},
            "changes": explored.labels,
            "sentence": explored.note,
        }
        self._words_sent = len(words)
        self.send({**told, **self._texts()}, buffers=[numbers for _, numbers in pieces])
