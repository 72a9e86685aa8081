"""Makes the pictures of README.md and docs/ from the package and the model that comes with it.

    python docs/pictures/make.py [FOLDER]

Pages are photographed by Chromium (Debian: apt-get install chromium). `sf.explore` needs anywidget.
"""

import base64
import json
import shutil
import subprocess
import sys
import tempfile
from itertools import chain, islice
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

import simdformer as sf
from simdformer.data.corpus import documents
from simdformer.training import TrainableModel

LOOKUP = "Mia has a red kite. Ben has a blue boat. What colour is the boat of Ben? It is"
OTHER = "Mia has a red kite. Ben has a blue boat. What colour is the kite of Mia? It is"


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


def explore() -> str:
    """The widget of `sf.explore` with two changes."""
    explorer = sf.explore(sf.from_pretrained(sf.demo_path()), LOOKUP, OTHER)
    head = {"part": "head", "layer": 2, "at": 0, "value": "other"}
    explorer.edits = [head, {"part": "mlp", "layer": 1, "value": "mean"}]
    return widget(explorer)


def run() -> str:
    """The widget of `sf.explore` beside a run of a small model, after its first minute."""
    demo = sf.from_pretrained(sf.demo_path())
    model = TrainableModel.from_config(demo.transformer.config, seed=0)
    model.tokenizer = demo.tokenizer
    texts, losses = documents(seed=1), []
    explorer = sf.explore(model, LOOKUP)
    optimizer = sf.optim.AdamW(model.parameters(), lr=2e-3)
    ids = list(islice(chain.from_iterable(demo.encode(text) for text in texts), 120 * 16 * 64))
    for step, batch in enumerate(np.reshape(ids, (120, 16, 64))):
        loss, gradients = model.loss_and_gradients(batch)
        sf.optim.clip_grad_norm_(gradients, 1.0)
        optimizer.step(
            gradients, lr=sf.optim.cosine_lr(step, lr=2e-3, warmup=20, total=120, min_lr=4e-5)
        )
        losses.append(loss)
    explorer.update(losses)
    return widget(explorer)


def widget(explorer: Any) -> str:
    """A page that is told what a kernel tells the widget in a notebook."""
    told: list[tuple[Any, Any]] = []
    explorer.send = lambda content, buffers=(): told.append((content, buffers))
    explorer._hear(explorer, {"do": "open", "view": None}, [])
    messages = [
        {"content": content, "buffers": [base64.b64encode(one).decode() for one in buffers]}
        for content, buffers in told
    ]
    start = {name: getattr(explorer, name) for name in ("layer", "head", "position")}
    return f"""<!doctype html><meta charset="utf-8"><body style="margin: 0"><div id="widget"></div>
<script type="module">
{explorer._esm}
const codes = (text) => Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
const listeners = {{}};
const start = {spelled(start)};
const model = {{
  get: (name) => start[name],
  set: () => {{}},
  save_changes: () => {{}},
  on: (name, listener) => {{ listeners[name] = listener; }},
  send: () => {{}},
}};
render({{ model, el: document.getElementById("widget") }});
for (const {{ content, buffers }} of {spelled(messages)})
  listeners["msg:custom"](content, buffers.map((one) => new DataView(codes(one).buffer)));
</script>"""


def spelled(told: Any) -> str:
    """JSON that does not end the script that it stands in."""
    return json.dumps(told).replace("<", "\\u003c")


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
    _, trace = model.run_with_cache(LOOKUP, "layers.3.attn.pattern")
    title = "layer 3, head 0: the last token looks at the colour of the boat"
    axes = sf.plots.attention_map(trace["pattern", 3][0], trace.tokens, title=title)
    axes.figure.savefig(file, dpi=110)


def main(folder: Path) -> None:
    mpl.use("agg")
    photograph(look(), folder / "look.png", 1400, 1010)
    photograph(explore(), folder / "explore.png", 1117, 961)
    photograph(run(), folder / "explore_run.png", 1117, 830)
    photograph(check(), folder / "check.png", 640, 540)
    attention(folder / "attention.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parent)
