"""`sf.look`: a page that shows a model reading one text. One HTML file that needs no network."""

import html
import json
import os
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from simdformer.arguments import read_whole
from simdformer.interpret.page.content import Reading, packed, read_text
from simdformer.interpret.subject import read_subject

__all__ = ["MOST_TOKENS", "Page", "bundle", "look", "page_of", "text_of"]

MOST_TOKENS = 200
# script/NAME.js, in the order in which they need each other
VIEWS = (
    "data",
    "state",
    "text",
    "heads",
    "head",
    "lens",
    "attribution",
    "loss",
    "run",
    "layer",
    "page",
)


class Page:
    """What `look` gives. It is shown by itself in Jupyter, VS Code and Colab; `.save(path)` writes
    one HTML file, which opens with a double click; `.html` is its text."""

    def __init__(self, text: str, about: str) -> None:
        self.html, self.about = text, about

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the page to a file, and gives its path."""
        file = Path(path)
        file.write_text(self.html, encoding="utf-8")
        return file

    def __repr__(self) -> str:
        return f"Page({self.about}, {len(self.html) / 1e6:.1f} MB; .save('look.html') writes it)"

    def _repr_html_(self) -> str:
        page = html.escape(self.html, quote=True)
        return (  # a notebook that is not trusted drops the frame, and shows the line
            f"<p>{html.escape(self.about)}: the page is below, in a notebook that is trusted.</p>"
            f'<iframe srcdoc="{page}" sandbox="allow-scripts" title="{html.escape(self.about)}" '
            'style="width: 100%; height: 900px; border: 0"></iframe>'
        )


def look(
    model: Any,
    text: Any,
    *,
    against: str | int | None = None,
    target: str | int | None = None,
    max_tokens: int = MOST_TOKENS,
    cut: bool = False,
) -> Page:
    """A page on which one can see a model read a text: how it is predicted, what each head
    attends to, what the model would say after each layer, which parts write it, and the numbers.

    Parameters
    ----------
    model : LanguageModel, Transformer or TrainableModel
        Of a TrainableModel the page shows too what the loss of the next tokens asks of each head
        and MLP. Its text is words where it is told a tokenizer (`model.tokenizer = ...`), else ids.
    text : str, or ids (L,)
    against, target : token, optional
        Its text or id: attribution of logit(target) - logit(against). Without a target it is the
        word that the model says at each position.
    max_tokens : int
        How long a text may be: the page grows with its square.
    cut : bool
        Whether a longer text is cut there; otherwise it is an error.

    Returns
    -------
    Page
        `.save(path)` writes it. Patterns are kept in 8 bits, everything else in float32.

    Raises
    ------
    ValueError
        The text is too long; it needs a tokenizer and there is none.
    TypeError
        It is neither text nor ids.

    >>> import simdformer as sf
    >>> model = sf.from_pretrained(sf.demo_path())
    >>> sf.look(model, "Mia has a red kite.").about
    '6 layers of 4 heads, 7 tokens'
    """
    subject = read_subject("look", model, text)
    most = read_whole("look", "max_tokens", max_tokens)
    length, note = len(subject.ids), ""
    if length > most:
        if not cut:
            raise ValueError(
                f"look: the text has {length} tokens, needs at most {most}; shorten it, say "
                "cut=True, or allow more with max_tokens="
            )
        note = f"; the first {most} of {length} tokens"
        subject = read_subject("look", model, subject.ids[:most])
    about = f"{subject.transformer.config.summary}, {len(subject.ids)} tokens{note}"
    return Page(page_of(read_text(subject, about, target, against)), about)


def page_of(
    reading: Reading,
    before: Reading | None = None,
    changes: Sequence[str] = (),
    run: Mapping[str, Any] | None = None,
) -> str:
    """page.html with page.css, the scripts and what they draw: a reading, beside it the one before
    these changes, and the curves of a run. Nothing in that ends the element that it stands in: `<`
    is spelled out."""
    data = json.dumps(
        {**reading.data, "changes": list(changes), "run": run},
        ensure_ascii=False,
        allow_nan=False,
        separators=(",", ":"),
    )
    for character in "<>&\u2028\u2029":
        data = data.replace(character, f"\\u{ord(character):04x}")
    parts = {
        "STYLE": text_of("page.css"),
        "SCRIPT": bundle("file"),
        "VIEWS": text_of("views.html"),
        "DATA": data,
        "NUMBERS": packed(reading.numbers),
        "BEFORE": "" if before is None else packed(before.numbers),
    }
    return re.sub(r"/\*([A-Z]+)\*/", lambda found: parts[found[1]], text_of("page.html"))


def bundle(last: str) -> str:
    """One script: what the views are made with, the views as `openPage`, and what opens them."""
    views = "\n".join(text_of(f"script/{name}.js") for name in VIEWS)
    opens = (
        f"function openPage(root, data, now, before, hooks = {{}}) {{\n{views}\nreturn page;\n}}"
    )
    return "\n".join([text_of("script/base.js"), opens, text_of(f"script/{last}.js")])


def text_of(name: str) -> str:
    """A file of the page."""
    return (resources.files(__package__) / name).read_text(encoding="utf-8")
