"""Makes the pictures of README.md and docs/ from the package and the model that comes with it.

    python docs/pictures/make.py [FOLDER]

Pages are photographed by Chromium (Debian: apt-get install chromium).
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib as mpl
import numpy as np

import simdformer as sf

LOOKUP = "Mia has a red kite. Tom has a blue boat. What colour is the boat of Tom? It is"


def look() -> str:
    """The page of `sf.look`."""
    model = sf.from_pretrained(sf.demo_path())
    return sf.look(model, LOOKUP, target=" blue", against=" red").html


def check() -> str:
    """The report of `sf.check`, as a notebook shows it."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, 12, 16), dtype=np.float32) for _ in range(3))
    scores = q @ k.swapaxes(-1, -2) / np.float32(np.sqrt(16))
    scores = np.where(np.tril(np.ones((12, 12), bool), k=1), scores, -np.inf)
    shares = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    report = sf.check(sf.scaled_dot_product_attention, shares @ v, q, k, v, is_causal=True)
    body = report._repr_html_()
    return f'<!doctype html><meta charset="utf-8"><body style="font: 14px sans-serif">{body}'


def photograph(page: str, file: Path, width: int, height: int) -> None:
    """A page as a browser shows it, in that many pixels."""
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("chromium is not installed. On Debian or Ubuntu: sudo apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "page.html"
        source.write_text(page, encoding="utf-8")
        command = [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += [f"--window-size={width},{height}", "--virtual-time-budget=4000"]
        command += [f"--screenshot={file.resolve()}", source.as_uri()]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL, timeout=120)


def attention(file: Path) -> None:
    """One head's pattern, as `sf.plots` draws it."""
    model = sf.from_pretrained(sf.demo_path())
    _, trace = model.run_with_cache(LOOKUP, "layers.5.attn.pattern")
    title = "layer 5, head 0: the last token looks at both colours"
    axes = sf.plots.attention_map(trace["pattern", 5][0], trace.tokens, title=title)
    axes.figure.savefig(file, dpi=110)


def main(folder: Path) -> None:
    mpl.use("agg")
    photograph(look(), folder / "look.png", 1400, 1010)
    photograph(check(), folder / "check.png", 640, 540)
    attention(folder / "attention.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parent)
