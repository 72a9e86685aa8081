"""How the demonstration checkpoint is made: `python -m simdformer.demo.train DIRECTORY`.

Trains a byte-pair tokenizer and a Llama-3-shaped model on the documents of `data/corpus.py` and
writes them as Meta publishes its models: `params.json`, `consolidated.00.pth` (bfloat16),
`tokenizer.model` (tiktoken's format). Needs `tokenizers`. Everything is seeded. The checkpoint in
this release was made by it.
"""

import argparse
import base64
import json
import math
import struct
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from random import Random

import ml_dtypes
import numpy as np
import tokenizers

import simdformer as sf
from simdformer.checkpoints.meta import NAMES
from simdformer.data.corpus import ULTIMATE, ask, documents, facts, state
from simdformer.models import ModelConfig
from simdformer.training import TrainableModel
from simdformer.types import Array

__all__ = ["Params", "main", "make"]

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
    def config(self) -> ModelConfig:
        return ModelConfig(
            hidden_size=self.dim,
            num_layers=self.n_layers,
            num_heads=self.n_heads,
            num_kv_heads=self.n_kv_heads,
            head_dim=self.dim // self.n_heads,
            intermediate_size=self.intermediate_size,
            vocab_size=self.vocab_size,
            max_seq_len=self.max_seq_len,
            norm_eps=self.norm_eps,
            rope_theta=self.rope_theta,
            rope_layout="interleaved",
            tie_embeddings=False,
        )

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


# ---- training ------------------------------------------------------------------------------------


def batches(
    tokenizer: tokenizers.Tokenizer, ranks: int, batch: int, length: int, seed: int
) -> Iterator[Array]:
    """Rows of length + 1 ids: documents between <|begin_of_text|> and <|end_of_text|>, in line."""
    begin, end = ranks, ranks + 1
    stream = documents(seed)
    pending: list[int] = []
    while True:
        while len(pending) < batch * (length + 1):
            for encoding in tokenizer.encode_batch(list(islice(stream, 256))):
                pending += [begin, *encoding.ids, end]
        yield np.array(pending[: batch * (length + 1)]).reshape(batch, length + 1)
        pending = pending[batch * (length + 1) :]


def new_model(p: Params, seed: int) -> TrainableModel:
    """Matrices normal with 0.04: a narrow model takes larger numbers than GPT-2's."""
    model = TrainableModel.from_config(p.config, seed=seed)
    for weight in model.parameters().values():
        if weight.ndim == 2:
            weight *= 2
    return model


def train(
    p: Params, tokenizer: tokenizers.Tokenizer, steps: int, batch: int, seed: int
) -> TrainableModel:
    """AdamW, its rate warmed up and then let down along a cosine. In the first half rows are half
    as long and twice as many: what repeats itself is found sooner where there is less to look at.
    """
    model = new_model(p, seed)
    optimizer = sf.optim.AdamW(model.parameters(), lr=2e-3)
    ranks, length = p.vocab_size - NUM_SPECIAL, p.max_seq_len
    halves = (
        batches(tokenizer, ranks, 2 * batch, length // 2, seed),
        batches(tokenizer, ranks, batch, length, seed + 1),
    )
    for step in range(steps):
        warm, progress = min(1.0, (step + 1) / 100), step / steps
        rate = 2e-3 * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))
        ids = next(halves[2 * step // steps])
        loss, gradients = model.loss_and_gradients(ids[:, :-1], ids[:, 1:])
        sf.optim.clip_grad_norm_(gradients, 1.0)
        optimizer.step(gradients, lr=rate)
        if step % 200 == 0 or step == steps - 1:
            found = f"looked up {recall(model, tokenizer, seed):4.0%}"
            print(f"step {step:5d}  loss {loss:.4f}  rate {rate:.1e}  {found}", flush=True)
    return model


def recall(
    model: TrainableModel, tokenizer: tokenizers.Tokenizer, seed: int, count: int = 96
) -> float:
    """How many of `count` questions about facts that stand before them are answered right, as far
    as the likeliest next token tells."""
    r, reader = Random(seed), model.language_model()
    config = model.config
    right = 0
    for _ in range(count):
        known = facts(r)
        question, answer = ask(r, known)
        asked = tokenizer.encode(f"{state(known)} {question}").ids
        ids = [config.vocab_size - NUM_SPECIAL, *asked][-config.max_seq_len :]
        right += int(reader(ids)[-1].argmax()) == tokenizer.encode(answer).ids[0]
    return right / count


# ---- files ---------------------------------------------------------------------------------------


def write_pth(path: Path, tensors: Mapping[str, Array]) -> None:
    """What torch.save writes of contiguous bfloat16 tensors by name: a pickle that describes them,
    and the numbers of each."""

    def text(value: str) -> bytes:
        return b"X" + struct.pack("<I", len(value.encode())) + value.encode()

    def numbers(values: Sequence[int]) -> bytes:
        return b"(" + b"".join(b"J" + struct.pack("<i", value) for value in values) + b"t"

    pickled = b"\x80\2}("
    for key, (name, tensor) in enumerate(tensors.items()):
        storage = b"(" + text("storage") + b"ctorch\nBFloat16Storage\n" + text(str(key))
        storage += text("cpu") + b"J" + struct.pack("<i", tensor.size) + b"tQ"
        strides = [stride // tensor.itemsize for stride in tensor.strides]
        pickled += text(name) + b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\0"
        pickled += numbers(tensor.shape) + numbers(strides) + b"\x89ccollections\nOrderedDict\n)RtR"
    with zipfile.ZipFile(path, "w") as archive:
        members = {"data.pkl": pickled + b"u.", "byteorder": b"little", "version": b"3\n"}
        members |= {f"data/{key}": one.tobytes() for key, one in enumerate(tensors.values())}
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(f"consolidated.00/{name}"), content)


def make(
    directory: Path, p: Params, steps: int, batch: int, seed: int
) -> tuple[TrainableModel, tokenizers.Tokenizer]:
    """Trains both, writes them, and gives them back as they were written."""
    tokenizer = train_tokenizer(p.vocab_size - NUM_SPECIAL, seed)
    model = train(p, tokenizer, steps, batch, seed)
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, weight in model.parameters().items():
        rounded = weight.astype(ml_dtypes.bfloat16)
        tensors[NAMES.theirs(name)] = rounded
        weight[...] = rounded
    write_pth(directory / "consolidated.00.pth", tensors)
    (directory / "params.json").write_text(json.dumps(asdict(p), indent=1) + "\n")
    write_tokenizer(tokenizer, directory / "tokenizer.model")
    return model, tokenizer


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
    make(options.directory, params, options.steps, options.batch, options.seed)
    model = sf.from_pretrained(options.directory)
    for prompt in (
        ULTIMATE,
        "Once upon a time",
        "Mia has a red kite. Ben has a blue boat. What colour is the boat of Ben? It is",
        "3 + 4 =",
    ):
        new = max(min(60, options.length - len(model.encode(prompt))), 0)
        text = model.generate(prompt, max_new_tokens=new, temperature=0.0)
        print(repr(prompt), "->", repr(text))


if __name__ == "__main__":
    main()
