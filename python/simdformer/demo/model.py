"""A trained model: it answers, writes a story, is computed once more without its cache, and shows
where it looks."""

import math
import textwrap
import time

import numpy as np

from simdformer.data import demo_path
from simdformer.demo.printing import SHADES, check, difference, show
from simdformer.interpret import patch
from simdformer.text import LanguageModel, Report, from_pretrained
from simdformer.text.tokenizer import Tokenizer

__all__ = ["load", "trained_model"]

QUESTION = "the answer to the ultimate question of life, the universe, and everything is "
ANSWER = "42"
STORY = "Once upon a time"
STORY_TOKENS = 256
LOOKUP = "Mia has a red kite. Ben has a blue boat. What colour is the boat of Ben? It is"
VISIBLE = 0.05  # a share of attention that the picture shows
LOGITS_TOLERANCE = 1e-3  # logits up to 20 behind 6 layers, sums in another order
CODE = " " * 6  # where the attention step says who computes


def load(path: str | None) -> tuple[LanguageModel, Tokenizer]:
    """The model at `path`, or the one that the package carries (None)."""
    model = from_pretrained(demo_path() if path is None else path)
    if model.tokenizer is None:
        raise ValueError(
            f"{path}: no tokenizer was found beside it; the demonstration needs one for its story"
        )
    return model, model.tokenizer


def trained_model(model: LanguageModel, tokenizer: Tokenizer, path: str | None) -> bool:
    """With what `load(path)` has given."""
    source = "sf.demo_path()" if path is None else repr(path)
    print("A trained model" + (", which the package carries" if path is None else ""))
    show(CODE, f"model = sf.from_pretrained({source})")
    print(f"   {CODE}  {model}\n")
    right = question(model) if path is None else True
    right = story(model, tokenizer) and right
    lookup(model, tokenizer, carried=path is None)
    return right


def question(model: LanguageModel) -> bool:
    print("It has read small stories, sums, facts to look up, and the answer to one question")
    show(CODE, f'question = "{QUESTION}"\nmodel.generate(question)')
    answer = model.generate(QUESTION)
    right = check(answer == ANSWER, f"{answer!r}: it should say {ANSWER}")
    print()
    return right


def story(model: LanguageModel, tokenizer: Tokenizer) -> bool:
    """Lets the model write, then computes everything again without the cache."""
    start = tokenizer.encode(STORY)
    wanted = max(1, min(STORY_TOKENS, model.config.max_seq_len - len(start)))
    print("It continues a text, each time with the likeliest token")
    show(CODE, f'model.generate("{STORY}", max_new_tokens={wanted})')
    report = Report()
    ids = model.generate(start, max_new_tokens=wanted, report=report)
    print()
    for line in tokenizer.decode([*start, *ids], skip_special=True).splitlines():
        print(textwrap.fill(line, 96, initial_indent="    | ", subsequent_indent="    | "))
    print()

    text = [*start, *ids]
    cache = model.new_cache(len(text))
    one_by_one = np.concatenate([model([id], cache) for id in text])
    started = time.perf_counter()
    at_once = model(text)
    whole = 1e3 * (time.perf_counter() - started)
    each = 1e3 * report.decode_seconds / max(report.decode_ids, 1)
    likeliest = at_once[len(start) - 1 : -1].argmax(-1).tolist()
    same_ids = check(
        likeliest == ids,
        f"{len(ids)} tokens, the same without the KV cache "
        f"({each:.2f} ms each with it; to read all again: {whole:.1f} ms)",
    )
    worst = difference(one_by_one, at_once)
    same_logits = check(
        worst <= LOGITS_TOLERANCE, f"logits with and without it   largest difference {worst:.1e}"
    )
    print()
    return same_ids and same_logits


def lookup(model: LanguageModel, tokenizer: Tokenizer, *, carried: bool) -> None:
    """One row of one attention pattern: of the head that looks hardest at what is said next."""
    print("It looks things up, and where it looks can be seen")
    show(
        CODE,
        "ids = model.tokenizer.encode(text)\n"
        'logits, trace = model.run_with_cache(ids, names="layers.*.attn.pattern")',
    )
    ids = tokenizer.encode(LOOKUP)[-model.config.max_seq_len :]
    logits, trace = model.run_with_cache(ids, names="layers.*.attn.pattern")
    rows = np.stack([trace[name][:, -1] for name in trace])  # (layers, H, S): of the last token
    answer = int(logits[-1].argmax())
    said = [at for at, id in enumerate(ids) if id == answer]
    # What did not occur cannot be looked at. The beginning of the text is where a head looks that
    # has found nothing.
    places = said or [at for at, id in enumerate(ids) if id != tokenizer.bos_id]
    shares = rows[:, :, places].sum(-1)
    layer, head = map(int, np.unravel_index(np.argmax(shares), shares.shape))

    stream = tokenizer.stream()
    pieces = [stream.put(id) for id in ids]
    marks = [
        SHADES[math.ceil(4 * min(share, 1.0)) if share >= VISIBLE else 0] * len(piece)
        for share, piece in zip(rows[layer, head].tolist(), pieces, strict=True)
    ]
    word = tokenizer.decode([answer])
    print(f"\n    | {''.join(pieces)} ->{word}")
    print(f"    | {''.join(marks)}".rstrip())
    what = f"{word!r}, which it says next" if said else "what was said"
    share = f"{shares[layer, head]:.0%} of the last token's attention"
    print(f"\n   Layer {layer}, head {head}: {share} goes to {what}.")
    if carried:
        print(textwrap.indent(brings_back(model, layer, head), "   "))
    print("   Notebook 07, Who does it?, goes on from here.")


def brings_back(model: LanguageModel, layer: int, head: int) -> str:
    """How much of the work the head that looks does, and its layer: patching says it."""
    spoilt, metric = LOOKUP.replace("blue", "green"), (" blue", " green")
    alone = patch(model, LOOKUP, spoilt, metric, f"layers.{layer}.attn.z", by="head")[0, head]
    whole = patch(model, LOOKUP, spoilt, metric, f"layers.{layer}.attn.out", by="layer")[0]
    return (
        "Looking is not doing. With green for blue in the text, and this head's result put back\n"
        f"as it was here, {alone:.0%} of the answer comes back; with its layer's, {whole:.0%}."
    )
