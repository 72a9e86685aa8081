"""`sf.look`: a page that shows a model reading one text. One HTML file that needs no network."""

import html
import json
import os
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from simdformer.arguments import read_whole
from simdformer.interpret.attribution import attribute_everywhere
from simdformer.interpret.lens import lens_of
from simdformer.interpret.page.content import LENS_TOP, Numbers, content
from simdformer.interpret.subject import read_subject

__all__ = ["Page", "look"]

MOST_TOKENS = 200
# script/NAME.js, in the order in which they need each other
SCRIPTS = ("data", "state", "text", "heads", "head", "lens", "attribution", "layer", "page")


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
    model : LanguageModel or Transformer
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
    config = subject.transformer.config
    logits, trace = subject.run(["*", "final_norm_scale"])
    layers, top = list(range(-1, config.num_layers)), min(LENS_TOP, config.vocab_size)
    lens = lens_of(subject, trace, layers, logits.argmax(-1), top)
    written = attribute_everywhere(subject, logits, trace, target, against)
    about = f"{config.summary}, {len(subject.ids)} tokens{note}"
    numbers = Numbers()
    data = content(subject, logits, trace, lens, written, about, numbers)
    return Page(page_of(data, numbers), about)


def page_of(data: Mapping[str, Any], numbers: Numbers) -> str:
    """page.html with page.css, the scripts and what they draw. Nothing in that ends the element
    that it stands in: `<` is spelled out."""
    folder = resources.files(__package__)
    page, style = (
        (folder / f"page.{kind}").read_text(encoding="utf-8") for kind in ("html", "css")
    )
    script = "\n".join(
        (folder / "script" / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS
    )
    told = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        told = told.replace(character, f"\\u{ord(character):04x}")
    parts = {"STYLE": style, "SCRIPT": script, "DATA": told, "NUMBERS": numbers.packed}
    return re.sub(r"/\*([A-Z]+)\*/", lambda found: parts[found[1]], page)
