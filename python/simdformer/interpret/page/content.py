"""What the page is told of one reading of a text: words, and one piece of memory that holds every
array."""

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from simdformer.experts import top_k
from simdformer.functional import softmax
from simdformer.interpret.attribution import Attribution, attribute_everywhere
from simdformer.interpret.heads import head_scores
from simdformer.interpret.lens import LensCells
from simdformer.interpret.loss import by_position, loss_by_part, root_mean_square
from simdformer.interpret.subject import Subject, token_text
from simdformer.models.activation_table import activation_of, layer_of, sources_of
from simdformer.models.config import ModelConfig
from simdformer.models.observer import Edit
from simdformer.models.progress import Progress
from simdformer.models.trace import Trace
from simdformer.types import Array

__all__ = ["Reading", "packed", "read_text"]

LONGEST_TITLE = 60
NEXT, LENS_TOP, FIRST = 5, 10, 8  # words predicted, words of a lens, numbers of an activation
MEANS = {
    "previous_token": "the share that goes to the token before",
    "first_token": "the share that goes to the first token, where a head rests",
    "same_token": "the share that goes to earlier places of the same token",
    "induction": "the share that goes to what came after earlier places of the same token",
    "entropy": "of a row, in bits: 0 looks at one token",
}
ALIGNMENT = 4  # bytes, of every array


class Numbers:
    """Arrays one behind the other. `add` gives what the page finds one by: [type, place in bytes,
    how many numbers]; `.bytes` is all of them."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._length = 0

    def add(self, array: Any, dtype: Any = np.float32) -> list[Any]:
        little = little_endian(array, dtype)
        place = self._length
        part = little.tobytes()
        self._parts += [part, bytes(-len(part) % ALIGNMENT)]
        self._length += len(part) + -len(part) % ALIGNMENT
        return [little.dtype.name, place, little.size]

    @property
    def bytes(self) -> bytes:
        return b"".join(self._parts)


def little_endian(array: Any, dtype: Any) -> Array:
    return np.ascontiguousarray(array, np.dtype(dtype).newbyteorder("<"))


def packed(numbers: bytes) -> str:
    """As an HTML file holds them: zlib in base64."""
    return base64.b64encode(zlib.compress(numbers, level=1)).decode("ascii")


@dataclass(frozen=True)
class Reading:
    """One text, read once.

    said : (L,)
        The ids that lens and attribution follow: what the model says at each position.
    lens : LensCells
        Of all layers, at the positions that were asked for; the last row of it is always known.
    written : dict
        As of `attribute_everywhere`.
    data : dict
        What the page is told in JSON.
    numbers : bytes
        The arrays that `data` says the places of.
    words : Words
        Those that `data` knows.
    """

    subject: Subject
    logits: Array
    trace: Trace
    said: Array
    lens: LensCells
    written: dict[str, Any]
    data: dict[str, Any]
    numbers: bytes
    words: "Words"

    def array(self, place: list[Any]) -> Array:
        """What lies at a place in the numbers."""
        kind, start, count = place
        return np.frombuffer(self.numbers, np.dtype(kind).newbyteorder("<"), count, start)

    def with_lens(self) -> "Reading":
        """The same with what is known of the lens by now."""
        numbers = bytearray(self.numbers)
        for name, (array, dtype) in lens_arrays(self.lens, self.words).items():
            part = little_endian(array, dtype).tobytes()
            place = self.data["lens"][name][1]
            numbers[place : place + len(part)] = part
        return replace(self, numbers=bytes(numbers))


def read_text(
    subject: Subject,
    about: str,
    target: str | int | None = None,
    against: str | int | None = None,
    *,
    edit: Mapping[str, Edit] | None = None,
    before: Reading | None = None,
    lens_at: Sequence[int] | None = None,
) -> Reading:
    """Lets the model read the text, with changes on the way, and tells it, with the lens at these
    positions, or at all. What is told beside an earlier reading of the same text has its arrays at
    the same places, follows the same ids, and adds its words to those of the other."""
    config = subject.transformer.config
    names = ["*", "final_norm_scale"]
    if before is None:
        logits, trace = subject.run(names, edit)
    else:
        edit = edit or {}
        layer = min((layer_of(name) or 0 for name in edit), default=0)
        logits, trace = subject.run_from(layer, before.trace, names, edit)
    trace.tokens = subject.tokens if subject.tokenizer is not None else None
    said = logits.argmax(-1) if before is None else before.said
    layers, top = list(range(-1, config.num_layers)), min(LENS_TOP, config.vocab_size)
    lens, everywhere = LensCells(subject, trace, layers, said, top), range(len(subject.ids))
    lens.tell(-1, everywhere, logits)
    lens.fill(everywhere if lens_at is None else lens_at, None if before is None else before.lens)
    known = None if before is None else before.written
    written = attribute_everywhere(subject, said, trace, target, against, known)
    words = Words(subject) if before is None else before.words
    numbers = Numbers()
    data = content(subject, logits, trace, lens, written, about, numbers, words, before)
    if subject.trainable is not None:
        loss, parts, sizes = loss_by_part(subject, trace)
        places = {name: numbers.add(table) for name, table in parts.items()}
        data["loss"] = {"mean": loss if np.isfinite(loss) else None, **places}
        for name, told in data["activations"].items():
            none = np.full(len(subject.ids), np.nan)
            of_layers = [sizes.get(f"layers.{at}.{name}", none) for at in layers[1:]]
            told["gradient"] = numbers.add(np.stack(of_layers))
    return Reading(subject, logits, trace, said, lens, written, data, numbers.bytes, words)


def content(
    subject: Subject,
    logits: Array,
    trace: Trace,
    lens: LensCells,
    written: dict[str, Any],
    about: str,
    numbers: Numbers,
    words: "Words",
    before: Reading | None,
) -> dict[str, Any]:
    """Everything that the page reads; its arrays are added to `numbers`."""
    length = len(subject.ids)
    shares = softmax(logits)
    best = top_k(logits, min(NEXT, shares.shape[-1]))
    actual = np.full(length, np.nan, np.float32)
    actual[1:] = np.take_along_axis(shares[:-1], subject.ids[1:, None], -1)[:, 0]
    layers = range(subject.transformer.config.num_layers)
    patterns = np.stack([trace["pattern", layer] for layer in layers])
    scores = head_scores(trace)
    strongest = np.unravel_index(np.abs(written["heads"][..., -1]).argmax(), patterns.shape[:2])
    return {
        "title": title_of(subject),
        "about": f"{about}; patterns are kept in 8 bits",
        "tokens": subject.tokens,
        "spelled": subject.tokenizer is not None,
        "layers": len(layers),
        "heads": patterns.shape[1],
        "start": {"layer": int(strongest[0]), "head": int(strongest[1])},
        "next": {
            "words": numbers.add(words.indices(padded(best, NEXT)), np.int32),
            "shares": numbers.add(padded(np.take_along_axis(shares, best, -1), NEXT)),
            "actual": numbers.add(actual),
        },
        "patterns": numbers.add(eight_bits(patterns), np.uint8),
        "scores": {name: numbers.add(table) for name, table in scores.items()},
        "means": MEANS,
        "lens": {
            "layers": lens.layers,
            **{name: numbers.add(*given) for name, given in lens_arrays(lens, words).items()},
        },
        "attribution": {
            **{name: numbers.add(written[name]) for name in Attribution.PARTS},
            "target": written["target"],
            "against": written["against"],
        },
        "activations": activations(trace, subject.transformer.config, numbers, before),
        "words": words.known,
    }


def lens_arrays(lens: LensCells, words: "Words") -> dict[str, tuple[Array, Any]]:
    """What the page is told of the lens, with dtypes; word 0 where a cell is not known."""
    return {
        "words": (words.indices(padded(lens.ids, LENS_TOP)), np.int32),
        "shares": (padded(lens.probabilities, LENS_TOP), np.float32),
        "final": (lens.probability, np.float32),
    }


def title_of(subject: Subject) -> str:
    """The beginning of the text, without what begins every text."""
    if subject.tokenizer is None:
        text = " ".join(subject.tokens)
    else:
        text = " ".join(subject.tokenizer.decode(subject.ids, skip_special=True).split())
    return text if len(text) <= LONGEST_TITLE else f"{text[: LONGEST_TITLE - 1]}…"


class Words:
    """The text of ids, each once; index 0 is nothing."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._index: dict[int, int] = {-1: 0}
        self.known = [""]

    def id_of(self, index: int) -> int:
        """What is the word at an index."""
        return list(self._index)[index]

    def indices(self, ids: Array) -> Array:
        for id in np.unique(ids).tolist():
            if id not in self._index:
                self._index[id] = len(self.known)
                self.known.append(token_text(self._subject.tokenizer, id))
        return np.array([self._index[id] for id in np.ravel(ids).tolist()]).reshape(ids.shape)


def padded(array: Array, width: int) -> Array:
    """Ids -1 and shares of 0 where a vocabulary has fewer words than are shown."""
    missing = width - array.shape[-1]
    if missing <= 0:
        return array
    fill = -1 if array.dtype.kind in "iu" else 0
    edges = [(0, 0)] * (array.ndim - 1) + [(0, missing)]
    return np.pad(array, edges, constant_values=fill)


def eight_bits(patterns: Array) -> Array:
    """Patterns (layers,H,L,L): their lower triangles, 255 for a share of 1."""
    rows, columns = np.tril_indices(patterns.shape[-1])
    shares: Array = np.rint(255 * np.clip(patterns[..., rows, columns], 0, 1))
    return shares.astype(np.uint8)


def activations(
    trace: Trace, config: ModelConfig, numbers: Numbers, before: Reading | None
) -> dict[str, Any]:
    """Each activation of a layer: its shapes and what it is computed from (None in layers that
    have no such one), and for each layer and token the root mean square and the first numbers."""
    layers, length, told = range(config.num_layers), len(trace.ids), {}
    names = list(dict.fromkeys(name for layer in layers for name in trace[layer]))
    with Progress("look: numbers", len(names), unit="name") as progress:
        for name in names:
            shapes: list[list[int] | None] = [None] * len(layers)
            sources: list[tuple[str, ...] | None] = [None] * len(layers)
            rms = np.full((len(layers), length), np.nan, np.float32)
            few = np.full((len(layers), length, FIRST), np.nan, np.float32)
            for layer in layers:
                row = activation_of(config, f"layers.{layer}.{name}")
                if row is None:
                    continue
                array = trace[f"layers.{layer}.{name}"]
                shapes[layer] = list(array.shape)
                sources[layer] = nearest_sources(config, layer, name)
                if before is not None and array is before.trace[f"layers.{layer}.{name}"]:
                    same = before.data["activations"][name]
                    rms[layer] = before.array(same["rms"]).reshape(rms.shape)[layer]
                    few[layer] = before.array(same["first"]).reshape(few.shape)[layer]
                    continue
                rows = by_position(row, array)
                rms[layer] = root_mean_square(rows)
                few[layer, :, : rows.shape[-1]] = rows[:, :FIRST]
            told[name] = {
                "shapes": shapes,
                "sources": sources,
                "rms": numbers.add(rms),
                "first": numbers.add(few),
                "count": FIRST,
            }
            progress.advance(1)
    return told


@lru_cache(maxsize=4096)
def nearest_sources(config: ModelConfig, layer: int, name: str) -> tuple[str, ...]:
    """What an activation is computed from, but for what one of these is computed from itself: an
    arrow each, and no second way beside a first."""
    sources = sources_of(config, layer, name, untraced=False)
    further, waiting = set[str](), list(sources)
    while waiting:
        before = sources_of(config, layer, waiting.pop(), untraced=False)
        waiting += before
        further.update(before)
    return tuple(source for source in sources if source not in further)
