"""What a model takes on several ranks: memory, seconds and bytes sent, predicted from the shapes of
its weights and from what a machine was measured to do. docs/scaling.md explains it.

Nothing is run: a plan for 64 machines is made on a laptop.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from simdformer.models.config import ModelConfig
from simdformer.models.ranks import Part, deal
from simdformer.models.tensors import bits_of, block_of
from simdformer.models.weight_table import expert_of, weight_rows
from simdformer.models.weights import weight_shapes
from simdformer.parallel.mpi import in_one_exchange

__all__ = [
    "FLOAT",
    "Link",
    "Load",
    "Prediction",
    "Rates",
    "operations_of",
    "predict",
    "sizes_of",
    "sums",
]

FLOAT = 4  # bytes of an activation, which is what ranks send each other, and of a cached number
DRAWS = 2000  # choices of experts, for the rank that most of them fall to


@dataclass(frozen=True)
class Rates:
    """What one machine does, all its cores together.

    read
        Bytes of weights a second, when `linear` reads them once for one token.
    operations
        Multiplications and additions a second, when it reads a prompt.
    layer
        Seconds that a layer of one token also takes: calls, and all that is small.
    threads
        How many it computes with.
    """

    read: float
    operations: float
    layer: float
    threads: int


@dataclass(frozen=True)
class Link:
    """Between two ranks: bytes a second, and seconds from sending to receiving a short message."""

    bandwidth: float
    latency: float


@dataclass(frozen=True, kw_only=True)
class Load:
    """What is planned for: the KV cache has room for `context` positions and is full, `prompt` ids
    are read at once."""

    context: int = 4096
    prompt: int = 512
    cache_itemsize: int = FLOAT


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """A model on so many ranks. Bytes and seconds are those of the rank that has most.

    weights, cache
        Bytes of memory.
    token, prompt
        Seconds of one more token, and of reading the prompt.
    token_link, prompt_link
        Those of them in which ranks wait for each other's messages.
    token_sent, prompt_sent
        Bytes that a rank sends meanwhile.
    """

    ranks: int
    weights: float
    cache: float
    token: float
    token_link: float
    token_sent: float
    prompt: float
    prompt_link: float
    prompt_sent: float

    @property
    def memory(self) -> float:
        return self.weights + self.cache


def predict(
    config: ModelConfig,
    types: Mapping[str, str],
    rates: Rates,
    link: Link,
    load: Load,
    ranks: int,
    *,
    per_machine: int = 1,
) -> Prediction:
    """Tensor parallelism over `ranks` ranks, of which `per_machine` share a machine.

    `types` says of each tensor of `weight_shapes(config)` what its numbers are: a dtype's name or a
    quantised type's. ValueError: the model cannot be dealt to so many.
    """
    parts = deal(config, lambda name: block_of(types[name]), ranks)
    sizes = sizes_of(config, types)
    chosen = busiest([part.experts for part in parts], config.num_experts_per_tok)
    bills = [Bill.of(config, sizes, part, load, chosen) for part in parts]
    together = min(ranks, per_machine)
    calls = config.num_layers * rates.layer * max(1.0, together / rates.threads)
    token = max(bill.read for bill in bills) * together / rates.read + calls
    prompt = max(bill.operations for bill in bills) * together / rates.operations
    one, many = exchanges(config, ranks, 1), exchanges(config, ranks, load.prompt)
    waits = [sum(each.seconds(link) for each in all) for all in (one, many)]
    sent = [sum(each.sent for each in all) for all in (one, many)]
    return Prediction(
        ranks=ranks,
        weights=max(bill.held for bill in bills),
        cache=max(bill.cache for bill in bills),
        token=token + waits[0],
        token_link=waits[0],
        token_sent=sent[0],
        prompt=max(prompt, token) + waits[1],
        prompt_link=waits[1],
        prompt_sent=sent[1],
    )


def sizes_of(config: ModelConfig, types: Mapping[str, str]) -> dict[str, float]:
    """The bytes of each tensor."""
    return {
        name: math.prod(shape) * bits_of(types[name]) / 8
        for name, shape in weight_shapes(config).items()
    }


def operations_of(config: ModelConfig, prompt: int) -> float:
    """Multiplications and additions of one process that reads so many ids."""
    sizes = dict.fromkeys(weight_shapes(config), 0.0)
    return Bill.of(config, sizes, Part.whole(config), Load(prompt=prompt), 0.0).operations


@dataclass(frozen=True)
class Bill:
    """What one rank holds (bytes of weights and of its KV cache), what it reads for a token (bytes)
    and computes for a prompt (multiplications and additions)."""

    held: float
    cache: float
    read: float
    operations: float

    @classmethod
    def of(
        cls,
        config: ModelConfig,
        sizes: Mapping[str, float],
        part: Part,
        load: Load,
        chosen: float,
    ) -> "Bill":
        """`chosen`: how many experts of a layer are read for a token."""
        shapes = weight_shapes(config)
        held = read = operations = 0.0
        for name, row in weight_rows(config).items():
            expert = expert_of(name)
            share = 1.0
            for axis, length in zip(row.axes, shapes[name], strict=True):
                own = part.along(axis, config.head_dim)
                share *= 1.0 if own is None else len(own) / length
            if expert is None or expert in part.experts:
                held += share * sizes[name]
            if expert:
                continue  # they are alike: the first one stands for those that are chosen
            of_expert = expert is not None
            if name != "pos_embed" and (name != "embed" or config.tie_embeddings):
                read += (chosen if of_expert else 1.0) * share * sizes[name]
            if row.is_matrix and name not in ("embed", "lm_head"):
                # over many ids the choice of experts evens out
                evenly = config.num_experts_per_tok / config.num_experts if of_expert else 1.0
                dealt = len(part.experts) if of_expert else 1.0
                rows = load.prompt * evenly * dealt
                operations += 2 * rows * share * math.prod(shapes[name])
        width = config.head_dim * len(part.kv_heads)
        cache = 2 * config.num_layers * load.context * width * load.cache_itemsize
        for layer in range(config.num_layers):
            window = config.window(layer)
            seen = min(load.context, window or load.context)
            read += 2 * seen * width * load.cache_itemsize
            pairs = visible_pairs(load.prompt, window)
            operations += 4 * pairs * len(part.heads) * config.head_dim
        return cls(held, cache, read, operations)


def busiest(experts: Sequence[range], chosen: int) -> float:
    """How many of a layer's experts, dealt so to ranks, that rank reads which most of a token's
    choice falls to, on average when every choice is as likely as any other."""
    owner = np.repeat(np.arange(len(experts)), [len(own) for own in experts])
    if not len(owner):
        return 0.0
    rng = np.random.default_rng(0)
    choices = (rng.permutation(len(owner))[:chosen] for _ in range(DRAWS))
    return float(np.mean([np.bincount(owner[choice]).max() for choice in choices]))


def visible_pairs(length: int, window: int | None) -> float:
    """How many pairs of a query and a key a causal text has."""
    seen = min(length, window or length)
    return seen * (seen + 1) / 2 + (length - seen) * seen


# ---- what ranks tell each other ------------------------------------------------------------------


@dataclass(frozen=True)
class Exchange:
    """`count` times all ranks send `bytes` each, in `rounds` messages one after the other."""

    count: float
    rounds: int
    bytes: float

    @property
    def sent(self) -> float:
        return self.count * self.bytes

    def seconds(self, link: Link) -> float:
        return self.count * self.rounds * link.latency + self.sent / link.bandwidth


def exchanges(config: ModelConfig, ranks: int, ids: int) -> list[Exchange]:
    """Those of one forward pass over so many ids: the sums behind the embedding, each attention and
    each MLP, the logits of the last id, and which id was chosen."""
    if ranks == 1:
        return []
    rounds = rounds_of(ranks)
    of_sums = sums(1 + 2 * config.num_layers, ids * config.hidden_size * FLOAT, ranks)
    logits = Exchange(1, rounds, (ranks - 1) * config.vocab_size * FLOAT / ranks)
    return [of_sums, logits, Exchange(1, rounds, 0.0)]


def sums(count: float, nbytes: float, ranks: int) -> Exchange:
    """So many sums over all ranks, of so many bytes each."""
    rounds, others = rounds_of(ranks), ranks - 1
    if in_one_exchange(nbytes, ranks):  # all parts to all ranks
        return Exchange(count, rounds, others * nbytes)
    # a piece of the sum each, and the pieces to all
    return Exchange(count, 2 * rounds, 2 * others * nbytes / ranks)


def rounds_of(ranks: int) -> int:
    """How many messages one after the other take something to all ranks."""
    return math.ceil(math.log2(ranks))
