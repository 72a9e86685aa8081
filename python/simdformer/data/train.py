"""How the demonstration checkpoint was made: `python -m simdformer.data.train DIRECTORY`.

Trains a byte-pair tokenizer and a Llama-3-shaped model on the documents of `corpus.py` and writes
them as Meta publishes its models: `params.json`, `consolidated.00.pth` (bfloat16),
`tokenizer.model` (tiktoken's format). Needs `torch` and `tokenizers`; takes about three quarters of
an hour on two cores. Everything is seeded.
"""

import argparse
import base64
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from random import Random

import tokenizers
import torch
from torch import nn
from torch.nn import functional as F

from simdformer.data.corpus import ULTIMATE, ask, documents, facts, state

__all__ = ["Llama", "Params", "main", "make"]

NUM_SPECIAL = 256  # as many as Llama 3 reserves, so that its tokenizer's rule gives the right ids
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Params:
    """params.json, with Meta's names."""

    dim: int = 128
    n_layers: int = 6
    n_heads: int = 4
    n_kv_heads: int = 2
    vocab_size: int = 1024
    multiple_of: int = 32
    ffn_dim_multiplier: float = 1.1
    norm_eps: float = 1e-5
    rope_theta: float = 500000.0
    max_seq_len: int = 256  # the length of the rows that it was trained on

    @property
    def intermediate_size(self) -> int:
        hidden = int(self.ffn_dim_multiplier * int(2 * 4 * self.dim / 3))
        return self.multiple_of * math.ceil(hidden / self.multiple_of)


# ---- tokenizer -----------------------------------------------------------------------------------


def train_tokenizer(ranks: int, seed: int) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
        tokenizers.pre_tokenizers.Split(tokenizers.Regex(SPLIT), "isolated"),
        tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=ranks, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(islice(documents(seed), 40_000), trainer)
    if tokenizer.get_vocab_size() != ranks:
        raise RuntimeError(f"{tokenizer.get_vocab_size()} tokens were made, needs {ranks}")
    return tokenizer


def bytes_of_characters() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes, as `tokenizers` writes them."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + i): byte for i, byte in enumerate(others)
    }


def write_tokenizer(tokenizer: tokenizers.Tokenizer, path: Path) -> None:
    table = bytes_of_characters()
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    lines = [
        base64.b64encode(bytes(table[c] for c in token)) + b" %d\n" % rank
        for token, rank in vocabulary
    ]
    path.write_bytes(b"".join(lines))


# ---- model: Llama 3 in PyTorch, parameters named as Meta names them ------------------------------


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def rotate(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """RoPE on pairs (2i, 2i+1); x (B, H, T, D), angles (T, D/2)."""
    a, b = x[..., ::2], x[..., 1::2]
    cos, sin = angles.cos(), angles.sin()
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


class Attention(nn.Module):
    def __init__(self, p: Params) -> None:
        super().__init__()
        self.head_dim = p.dim // p.n_heads
        self.wq = nn.Linear(p.dim, p.n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(p.dim, p.n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(p.dim, p.n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(p.n_heads * self.head_dim, p.dim, bias=False)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            w(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for w in (self.wq, self.wk, self.wv)
        )
        q, k = rotate(q, angles), rotate(k, angles)
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(z.transpose(1, 2).flatten(-2))  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    def __init__(self, p: Params) -> None:
        super().__init__()
        self.w1 = nn.Linear(p.dim, p.intermediate_size, bias=False)
        self.w2 = nn.Linear(p.intermediate_size, p.dim, bias=False)
        self.w3 = nn.Linear(p.dim, p.intermediate_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))  # type: ignore[no-any-return]


class Block(nn.Module):
    def __init__(self, p: Params) -> None:
        super().__init__()
        self.attention_norm, self.ffn_norm = RMSNorm(p.dim, p.norm_eps), RMSNorm(p.dim, p.norm_eps)
        self.attention, self.feed_forward = Attention(p), FeedForward(p)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), angles)
        return x + self.feed_forward(self.ffn_norm(x))  # type: ignore[no-any-return]


class Llama(nn.Module):
    def __init__(self, p: Params) -> None:
        super().__init__()
        self.p = p
        self.tok_embeddings = nn.Embedding(p.vocab_size, p.dim)
        self.layers = nn.ModuleList(Block(p) for _ in range(p.n_layers))
        self.norm = RMSNorm(p.dim, p.norm_eps)
        self.output = nn.Linear(p.dim, p.vocab_size, bias=False)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                depth = (
                    (2 * p.n_layers) ** -0.5 if name.endswith(("wo.weight", "w2.weight")) else 1.0
                )
                nn.init.normal_(weight, std=0.04 * depth)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        head_dim = self.p.dim // self.p.n_heads
        inv_freq = self.p.rope_theta ** (-torch.arange(0, head_dim, 2) / head_dim)
        angles = torch.outer(torch.arange(ids.shape[1]), inv_freq)
        x = self.tok_embeddings(ids)
        for layer in self.layers:
            x = layer(x, angles)
        return self.output(self.norm(x))  # type: ignore[no-any-return]


# ---- training ------------------------------------------------------------------------------------


def batches(
    tokenizer: tokenizers.Tokenizer, ranks: int, batch: int, length: int, seed: int
) -> Iterator[torch.Tensor]:
    """Rows of length + 1 ids: documents between <|begin_of_text|> and <|end_of_text|>, in line."""
    begin, end = ranks, ranks + 1
    stream = documents(seed)
    pending: list[int] = []
    while True:
        while len(pending) < batch * (length + 1):
            for encoding in tokenizer.encode_batch(list(islice(stream, 256))):
                pending += [begin, *encoding.ids, end]
        yield torch.tensor(pending[: batch * (length + 1)]).view(batch, length + 1)
        pending = pending[batch * (length + 1) :]


def train(p: Params, tokenizer: tokenizers.Tokenizer, steps: int, batch: int, seed: int) -> Llama:
    """AdamW, its rate warmed up and then let down along a cosine. In the first half rows are half
    as long and twice as many: what repeats itself is found sooner where there is less to look at.
    """
    torch.manual_seed(seed)
    model = Llama(p)
    decay = [w for w in model.parameters() if w.ndim == 2]
    plain = [w for w in model.parameters() if w.ndim == 1]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    ranks, length = p.vocab_size - NUM_SPECIAL, p.max_seq_len
    halves = (
        batches(tokenizer, ranks, 2 * batch, length // 2, seed),
        batches(tokenizer, ranks, batch, length, seed + 1),
    )
    for step in range(steps):
        warm, progress = min(1.0, (step + 1) / 100), step / steps
        rate = 2e-3 * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        ids = next(halves[2 * step // steps])
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 200 == 0 or step == steps - 1:
            found = f"looked up {recall(model, tokenizer, seed):4.0%}"
            print(f"step {step:5d}  loss {loss.item():.4f}  rate {rate:.1e}  {found}", flush=True)
    return model


@torch.inference_mode()
def recall(model: Llama, tokenizer: tokenizers.Tokenizer, seed: int, count: int = 96) -> float:
    """How many of `count` questions about facts that stand before them are answered right, as far
    as the likeliest next token tells."""
    r = Random(seed)
    right = 0
    for _ in range(count):
        known = facts(r)
        question, answer = ask(r, known)
        ids = [
            model.p.vocab_size - NUM_SPECIAL,
            *tokenizer.encode(f"{state(known)} {question}").ids,
        ]
        likeliest = int(model(torch.tensor([ids[-model.p.max_seq_len :]]))[0, -1].argmax())
        right += likeliest == tokenizer.encode(answer).ids[0]
    return right / count


@torch.inference_mode()
def greedy(model: Llama, tokenizer: tokenizers.Tokenizer, prompt: str, count: int) -> str:
    begin = model.p.vocab_size - NUM_SPECIAL
    ids = [begin, *tokenizer.encode(prompt).ids]
    start = len(ids)
    for _ in range(count):
        following = int(model(torch.tensor([ids]))[0, -1].argmax())
        if following >= begin:
            break
        ids.append(following)
    return str(tokenizer.decode(ids[start:]))


def make(
    directory: Path, p: Params, steps: int, batch: int, seed: int
) -> tuple[Llama, tokenizers.Tokenizer]:
    """Trains both, writes them, and gives them back as they were written."""
    tokenizer = train_tokenizer(p.vocab_size - NUM_SPECIAL, seed)
    model = train(p, tokenizer, steps, batch, seed).bfloat16()
    directory.mkdir(parents=True, exist_ok=True)
    weights = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    torch.save(weights, directory / "consolidated.00.pth")
    (directory / "params.json").write_text(json.dumps(asdict(p), indent=1) + "\n")
    write_tokenizer(tokenizer, directory / "tokenizer.model")
    return model.float(), tokenizer


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, help="where the checkpoint is written")
    parser.add_argument("--steps", type=int, default=8000)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=Params.max_seq_len)
    parser.add_argument("--seed", type=int, default=42)
    options = parser.parse_args(arguments)
    params = Params(max_seq_len=options.length)
    model, tokenizer = make(options.directory, params, options.steps, options.batch, options.seed)
    for prompt in (
        ULTIMATE,
        "Once upon a time",
        "Mia has a red kite. Tom has a blue boat. What colour is the boat of Tom? It is",
        "3 + 4 =",
    ):
        print(repr(prompt), "->", repr(greedy(model, tokenizer, prompt, 60)))


if __name__ == "__main__":
    main()
