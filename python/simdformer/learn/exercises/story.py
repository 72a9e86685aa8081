"""The finale: the demonstration model runs on a learner's functions and writes a story.

The model is a Llama. Text becomes ids with `bpe_merges`; each new token goes through the layers
with `attend_with_cache`; `generate` chooses. Then the whole text is read once more without a cache,
with `transformer_block`, and `text_loss` says how well it was predicted. At last it is asked a
question in the format of `chat_ids`.

A Llama needs neither `multi_head_attention` nor `layer_norm`, but there is a place for each where
it computes the same: the first token is turned by an angle of 0 and attends to itself alone; and an
RMSNorm of x is the LayerNorm of x beside -x, whose mean is 0.
"""

import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from simdformer.data import demo_path
from simdformer.learn.exercises.calls import Keys, called, kinds_of_arrays
from simdformer.learn.exercises.exercise import EXERCISES
from simdformer.types import Array

__all__ = ["NEEDED", "PROMPT", "Story", "story_of"]

PROMPT = "Once upon a time"
NEW_TOKENS = 80
SAMPLED_TOKENS = 24
QUESTION = "Who are you?"
NEEDED = (
    *("softmax", "causal_mask", "scaled_dot_product_attention", "linear", "split_heads"),
    *("merge_heads", "multi_head_attention", "repeat_kv", "rope_frequencies", "rope_interleaved"),
    *("rope_half", "embedding", "rms_norm", "layer_norm", "silu", "mlp"),
    *("grouped_query_attention", "transformer_block", "attend_with_cache"),
    *("sampling_probabilities", "generate", "bpe_merges", "chat_ids", "text_loss"),
)


@dataclass(frozen=True)
class Story:
    """What a learner's functions wrote.

    prompt, text : where it begins, and what the functions wrote behind it
    ids : the new ids
    same : how many of them are those that the package writes, up to the first that differs
    sampled : another continuation, each token drawn with `sampling_probabilities`
    loss : of prompt and text, as `text_loss` computes it, in nats a token
    answer : what follows `QUESTION` in a chat
    """

    prompt: str
    text: str
    ids: list[int]
    same: int
    sampled: str
    loss: float
    answer: str

    @property
    def ok(self) -> bool:
        return self.same == len(self.ids)

    def __repr__(self) -> str:
        if self.ok:
            compared = f"all {self.same} tokens are those that simdformer writes"
        else:
            compared = f"the first {self.same} of {len(self.ids)} tokens are those of simdformer"
        return "\n".join(
            [
                "Your functions write a story:",
                "",
                *quoted(self.prompt + self.text),
                "",
                f"{compared}; loss {self.loss:.2f} nats a token.",
                "",
                "The same beginning, each token drawn at random:",
                "",
                *quoted(self.prompt + self.sampled),
                "",
                f'Asked "{QUESTION}" in the format of a chat, which this model has never read:',
                "",
                *quoted(self.answer.strip()),
            ]
        )


def quoted(text: str) -> Iterator[str]:
    for line in text.splitlines():
        yield textwrap.fill(line, 76, initial_indent="  | ", subsequent_indent="  | ")


def story_of(
    functions: Mapping[str, Callable[..., Any]],
    names: dict[str, Any],
    prompt: str = PROMPT,
    max_new_tokens: int = NEW_TOKENS,
) -> Story:
    """`functions` by the name of the exercise, all right and all that are `NEEDED`; `names` are
    those of the file or notebook that they come from."""
    from simdformer.text import from_pretrained

    model = from_pretrained(demo_path())
    tokenizer: Any = model.tokenizer
    weights = {name: np.asarray(weight, np.float32) for name, weight in model.weights.items()}
    use = Use(functions, names)
    mine = LearnersModel(use, model.config, weights)
    start = ids_of(prompt, tokenizer, use)
    end = tokenizer.eos_ids[0]
    ids = use("generate", mine, start, max_new_tokens, end)[0].tolist()
    wanted = model.generate(start, max_new_tokens=max_new_tokens)
    differing = [at for at, (a, b) in enumerate(zip(ids, wanted, strict=False)) if a != b]
    text = np.array([*start, *ids])
    (loss,) = use("text_loss", mine.read(text), text, -1)
    few = min(SAMPLED_TOKENS, max_new_tokens)
    drawn = sampled(mine, use, start, few, end)
    answer = use("generate", mine, chat_of(QUESTION, tokenizer, use), few, end)[0].tolist()
    return Story(
        prompt,
        tokenizer.decode(ids, skip_special=True),
        ids,
        differing[0] if differing else min(len(ids), len(wanted)),
        tokenizer.decode(drawn, skip_special=True),
        float(loss),
        tokenizer.decode(answer, skip_special=True),
    )


@dataclass
class Use:
    """Calls a learner's function with arrays of the kind that it wants; gives numpy arrays. who:
    for errors; results: what functions return, where it is not what the exercise's cases have."""

    functions: Mapping[str, Callable[..., Any]]
    names: dict[str, Any]
    who: str = "exercises.story"
    results: dict[str, Keys] = field(default_factory=dict)
    kinds: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __call__(self, name: str, *arguments: Any) -> tuple[Array, ...]:
        function = self.functions[name]
        if name not in self.kinds:
            self.kinds[name] = kinds_of_arrays(function, self.names)
            self.results.setdefault(name, EXERCISES[name].results)
        first: Exception | None = None
        for kind in self.kinds[name]:
            try:
                tried = called(function, arguments, self.results[name], kind)
            except Exception as error:
                first = first or error
                continue
            if tried.complaint:
                raise ValueError(f"{self.who}: {name} {tried.complaint}")
            self.kinds[name] = (kind,)
            return tuple(
                one if one.dtype.kind in "iub" else one.astype(np.float32) for one in tried.results
            )
        assert first is not None
        raise first


@dataclass
class LearnersModel:
    """logits, cache = model(ids, cache), on a learner's functions; `tensors`: it is called by a
    function that uses PyTorch."""

    use: Use
    config: Any
    weights: dict[str, Array]
    tensors: bool = False

    def fresh(self, kind: str) -> "LearnersModel":
        return LearnersModel(self.use, self.config, self.weights, kind == "torch")

    def __call__(self, ids: Any, cache: list[tuple[Array, Array]] | None = None) -> tuple[Any, Any]:
        config, use = self.config, self.use
        if cache is None:
            none = np.zeros((config.num_kv_heads, 0, config.head_dim), np.float32)
            cache = [(none, none)] * config.num_layers
        before = cache[0][0].shape[-2]
        positions = np.arange(before, before + len(ids))
        n = config.num_heads // config.num_kv_heads
        (x,) = use("embedding", np.asarray(ids), self.weights["embed"])
        new = []
        for layer, (keys, values) in enumerate(cache):
            one = partial(self.one, f"layers.{layer}.")
            h = one("rms_norm", x, "attn_norm", config.norm_eps)
            (q,) = use("split_heads", one("linear", h, "wq"), config.num_heads)
            (k,) = use("split_heads", one("linear", h, "wk"), config.num_kv_heads)
            (v,) = use("split_heads", one("linear", h, "wv"), config.num_kv_heads)
            q, k = (use("rope_interleaved", y, positions, config.rope_theta)[0] for y in (q, k))
            # The cache holds K heads; the function to be written knows no groups.
            repeated = [use("repeat_kv", y, n)[0] for y in (k, v, keys, values)]
            z, _, _ = use("attend_with_cache", q, *repeated)
            new.append((np.concatenate([keys, k], -2), np.concatenate([values, v], -2)))
            (z,) = use("merge_heads", z)
            delta = one("linear", z, "wo")
            if before == 0:
                delta[:1] = self.of_first(h[:1], layer)
            x = x + delta
            h = one("rms_norm", x, "mlp_norm", config.norm_eps)
            x = x + one("mlp", h, "gate", "up", "down")
        h = self.one("", "rms_norm", x, "final_norm", config.norm_eps)
        logits: Any = self.one("", "linear", h, "lm_head")
        if self.tensors:
            import torch

            logits = torch.from_numpy(logits)
        return logits, new

    def of_first(self, h: Array, layer: int) -> Array:
        """What attention gives for the first token, which is not turned and sees itself alone."""
        config = self.config
        start = f"layers.{layer}."
        wq, wk, wv, wo = (self.weights[start + name] for name in ("wq", "wk", "wv", "wo"))
        n = config.num_heads // config.num_kv_heads
        heads = [weight.reshape(config.num_kv_heads, -1, h.shape[-1]) for weight in (wk, wv)]
        wk, wv = (self.use("repeat_kv", w, n)[0].reshape(wq.shape) for w in heads)
        return self.use("multi_head_attention", h, h, h, config.num_heads, wq, wk, wv, wo)[0]

    def read(self, ids: Array) -> Array:
        """The logits of a whole text, without a cache."""
        config = self.config
        (x,) = self.use("embedding", ids, self.weights["embed"])
        for layer in range(config.num_layers):
            start = f"layers.{layer}."
            weights = {
                name.removeprefix(start): weight
                for name, weight in self.weights.items()
                if name.startswith(start)
            }
            for name, heads in (("wq", config.num_heads), ("wk", config.num_kv_heads)):
                weights[name] = pairs_apart(weights[name], heads)
            sizes = (config.num_heads, config.num_kv_heads, config.norm_eps, config.rope_theta)
            (x,) = self.use("transformer_block", x, weights, *sizes)
        weight = np.tile(self.weights["final_norm"], 2)
        both = np.concatenate([x, -x], axis=-1)
        (h,) = self.use("layer_norm", both, weight, np.zeros_like(weight), config.norm_eps)
        return self.one("", "linear", h[..., : x.shape[-1]], "lm_head")

    def one(self, prefix: str, name: str, x: Array, *arguments: Any) -> Array:
        """The one result of a function; names of weights stand for them."""
        given = [self.weights[prefix + a] if isinstance(a, str) else a for a in arguments]
        return self.use(name, x, *given)[0]


def pairs_apart(weight: Array, heads: int) -> Array:
    """The rows of a projection for `rope_half`: its partners are D/2 apart, and lie side by side in
    this model's file."""
    pairs = weight.reshape(heads, -1, 2, weight.shape[-1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(weight.shape))


def ids_of(text: str, tokenizer: Any, use: Use) -> list[int]:
    """A text as ids, with `bpe_merges`: the number of a token also says when it is made."""
    from simdformer.text.pieces import optional_package
    from simdformer.text.tiktoken_tokenizer import SPLIT

    cut = optional_package("regex", "Cutting a text into words")
    ranks = {token.decode("latin-1"): rank for token, rank in tokenizer.ranks.items()}
    tokens = {rank: token for token, rank in ranks.items()}
    ids = [tokenizer.bos_id]
    for word in cut.findall(SPLIT, text):
        letters = word.encode().decode("latin-1")  # one letter a byte
        pieces = list(letters)
        for rank in use("bpe_merges", letters, ranks)[0].astype(int).tolist():
            unions = [a + b for a, b in pairwise(pieces)]
            place = unions.index(tokens[rank])
            pieces[place : place + 2] = [tokens[rank]]
        ids += [ranks[piece] for piece in pieces]
    return ids


def chat_of(question: str, tokenizer: Any, use: Use) -> list[int]:
    """The ids of a chat that begins with a question."""

    def encode(text: str) -> list[int]:
        return ids_of(text, tokenizer, use)[1:]

    messages = [{"role": "user", "content": question}]
    ids: list[int] = use("chat_ids", messages, encode, tokenizer.special)[0].tolist()
    return ids


def sampled(model: LearnersModel, use: Use, start: list[int], most: int, end: int) -> list[int]:
    """New ids, drawn: the same ones every time."""
    rng = np.random.default_rng(0)
    new: list[int] = []
    logits, cache = model(start)
    while len(new) < most:
        (shares,) = use("sampling_probabilities", logits[-1], 0.8, 40, 0.95)
        shares = shares.astype(np.float64)
        id = int(rng.choice(len(shares), p=shares / shares.sum()))
        if id == end:
            break
        new.append(id)
        logits, cache = model([id], cache)
    return new
