"""A transformer with its tokenizer: what `from_pretrained` returns."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Unpack, overload

import numpy as np
import numpy.typing as npt

from simdformer.arguments import read_whole, shown
from simdformer.models.cache import KVCache
from simdformer.models.forward_pass import is_ragged
from simdformer.models.observer import Edit
from simdformer.models.paged_cache import PagedKVCache
from simdformer.models.protocol import CausalModel
from simdformer.text import generate as generation
from simdformer.text.batch import Batch
from simdformer.text.loss import Losses, token_losses
from simdformer.text.prompts import is_texts, read_prompts
from simdformer.text.sampling import SamplingOptions, check_names, shows_sampling
from simdformer.text.tokenized_model import Stop, TokenizedModel
from simdformer.types import DTypeLike, NumpyArrayLike

__all__ = ["GenerateOptions", "LanguageModel"]

TextOrIds = NumpyArrayLike  # a text, ids, or a list of either

MAX_BATCH = 64

# What a repr shows of the config.
SHOWN = ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "vocab_size", "max_seq_len")


class GenerateOptions(SamplingOptions, total=False):
    """The keywords of `LanguageModel.generate`, which explains them."""

    stop: Stop | None
    streamer: Callable[[Any], object] | generation.Streamer | None
    report: generation.Report | None
    max_batch: int
    cache: KVCache | PagedKVCache | None
    cache_memory: int | None
    cache_dtype: DTypeLike
    draft: TokenizedModel | CausalModel | str | None
    edit: Mapping[str, Edit] | None


class LanguageModel(TokenizedModel):
    """A `transformer` and its `tokenizer` (None when the checkpoint has none; an ImportError, which
    asking for it raises, when that takes a package that is missing).

    `model(ids)` gives logits, `model.generate(prompt)` text. `eos_ids` end a text, besides the
    tokenizer's own. `chat_template` (None when the checkpoint has none) is what `model.chat`
    writes a conversation with.
    """

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}={getattr(self.config, name)}" for name in SHOWN)
        return f"LanguageModel({sizes})"

    def __call__(
        self,
        ids: TextOrIds,
        cache: KVCache | None = None,
        logits_to_keep: int | None = None,
        *,
        edit: Mapping[str, Edit] | None = None,
    ) -> Any:
        """Text or ids (L,) -> float32 logits (L,V); ids (B,L) -> (B,L,V); a list of texts, or of
        ids of different lengths -> a list of logits. Otherwise as `Transformer.__call__`."""
        if is_texts(ids) or is_ragged(ids):
            if cache is not None:
                raise ValueError(
                    "model: cache holds one text that goes on, found is a list of texts; give "
                    "each a cache of its own"
                )
            return [self(one, None, logits_to_keep, edit=edit) for one in ids]
        return self.transformer(self._ids(ids), cache, logits_to_keep, edit=edit)

    def run_with_cache(
        self,
        ids: TextOrIds,
        names: str | Iterable[str] | None = None,
        *,
        edit: Mapping[str, Edit] | None = None,
    ) -> tuple[Any, Any]:
        """The logits of a text or of ids, and every activation by name, as a `Trace`; for a list of
        texts, or of ids of different lengths, a list of each. See `Transformer.run_with_cache`."""
        if is_texts(ids) or is_ragged(ids):
            several = [self.run_with_cache(one, names, edit=edit) for one in ids]
            return [logits for logits, _ in several], [trace for _, trace in several]
        logits, trace = self.transformer.run_with_cache(self._ids(ids), names, edit=edit)
        if self._has_tokens:
            tokens = [self._labels(row) for row in np.atleast_2d(trace.ids)]
            trace.tokens = tokens if trace.ids.ndim == 2 else tokens[0]
        return logits, trace

    def loss(self, text: TextOrIds) -> Any:
        """The negative log-likelihood of each token but the first, given those before it, in nats:
        (L-1,) float64, which Jupyter shows as the tokens. A list of texts, or ids (B,L), gives a
        list of such.

        ValueError: text without a tokenizer, more ids than max_seq_len. TypeError: neither text
        nor ids.

        >>> import simdformer as sf
        >>> model = sf.from_pretrained(sf.demo_path())
        >>> losses = model.loss("Mia has a red kite.")
        >>> losses.shape, bool(losses.mean() < 5)
        ((6,), True)
        """
        prompts = read_prompts(text, self._ids, function="loss", name="text")
        losses = [
            Losses.of(token_losses(self.transformer, ids), self._labels(ids)[1:])
            for ids in prompts.ids
        ]
        return losses if prompts.is_list else losses[0]

    def new_cache(
        self,
        max_seq_len: int | None = None,
        batch: int = 1,
        dtype: DTypeLike = "float32",
        *,
        memory: int | None = None,
        page_size: int = 32,
    ) -> KVCache:
        """An empty cache for this model: see `Transformer.new_cache`."""
        return self.transformer.new_cache(
            max_seq_len, batch, dtype, memory=memory, page_size=page_size
        )

    def new_paged_cache(
        self, memory: int | None = None, *, page_size: int = 32, dtype: DTypeLike = "float32"
    ) -> PagedKVCache:
        """See `Transformer.new_paged_cache`."""
        return self.transformer.new_paged_cache(memory, page_size=page_size, dtype=dtype)

    @overload
    def generate(
        self,
        prompt: str,
        max_new_tokens: int | None = None,
        **options: Unpack[GenerateOptions],
    ) -> str: ...
    @overload
    def generate(
        self,
        prompt: list[str] | tuple[str, ...],
        max_new_tokens: int | None = None,
        **options: Unpack[GenerateOptions],
    ) -> list[str]: ...
    @overload
    def generate(
        self,
        prompt: Sequence[int],
        max_new_tokens: int | None = None,
        **options: Unpack[GenerateOptions],
    ) -> list[int]: ...
    @overload
    def generate(
        self,
        prompt: Sequence[Sequence[int]],
        max_new_tokens: int | None = None,
        **options: Unpack[GenerateOptions],
    ) -> list[list[int]]: ...
    @overload
    def generate(
        self,
        prompt: npt.NDArray[np.integer[Any]],
        max_new_tokens: int | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Any: ...
    @shows_sampling
    def generate(
        self,
        prompt: Any,
        max_new_tokens: int | None = None,
        *,
        stop: Stop | None = None,
        streamer: Callable[[Any], object] | generation.Streamer | None = None,
        report: generation.Report | None = None,
        max_batch: int = MAX_BATCH,
        cache: KVCache | PagedKVCache | None = None,
        cache_memory: int | None = None,
        cache_dtype: DTypeLike = "float32",
        draft: TokenizedModel | CausalModel | str | None = None,
        edit: Mapping[str, Edit] | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> Any:
        """Continues a prompt: text in, the new text out; ids in, the new ids out.

        Parameters
        ----------
        prompt : str, ids (L,), or a list of either
            A list gives a list of results. They are computed together, as a continuous batch: what
            a prompt gets are the bits that it gets alone, and what several begin with is read once.
        max_new_tokens : int, optional
            None: as many as max_seq_len has room for behind each prompt.
        stop : str, int, or several of them
            What ends the text and is cut off, besides the tokenizer's end of text.
        streamer : callable, or an object with put(piece) and end()
            Is given the new text (for ids: each new id) as it comes, but never part of a
            character or of a stop string. For one prompt only.
        report : simdformer.text.Report, optional
            Is filled in with counts, times and the last logits.
        max_batch : int
            So many prompts are continued at a time; the others wait.
        cache : KVCache, optional
            Kept between calls: what a prompt shares with earlier prompts and answers, or with what
            `model(ids, cache)` has read, in whole pages of 32 ids, is not read again. `new_cache()`
            makes one. The text that the model itself goes on with in it stays as it is.
        cache_memory : int, optional
            Bytes that the KV cache may take; prompts wait for room in it. None: what it takes.
        cache_dtype : {"float32", "float16", "bfloat16"}
            That of the KV cache; 16 bits take half of the memory.
        draft : LanguageModel, Transformer or "prompt", optional
            Guesses the next ids, which are then read together: a smaller model of the same
            vocabulary, or what followed the same ids before ("prompt"). The text is the same as
            without, greedy or sampled; one that repeats itself comes faster.
        edit : dict of name or glob -> function
            Changes activations on their way, see `Transformer.__call__`. Prompts are continued one
            after the other then, without a draft; a long one is read in chunks of 512 ids, then id
            after id, and nothing is taken from the cache or left in it.
        temperature, top_k, top_p, min_p, repetition_penalty, seed
            See `simdformer.text.Sampler`; greedy unless temperature is above 0. Every prompt has
            random numbers of its own; with one seed they are the same for all, a list gives each
            its seed.

        Raises
        ------
        ValueError
            The prompt is empty, max_seq_len or cache_memory has no room for it, text without a
            tokenizer, a parameter that makes no sense.
        TypeError
            The prompt is neither text nor ids, or there is no such option.

        Ctrl-C ends it with KeyboardInterrupt; the model stays usable.
        """
        check_names("generate", sampling, ("max_new_tokens", *GenerateOptions.__annotations__))
        prompts = read_prompts(prompt, self.encode)
        own_seeds = seeds(sampling.get("seed"), len(prompts.ids))
        if streamer is not None and prompts.is_list:
            raise ValueError(
                "generate: a streamer follows one prompt, found is a list of them; call it for each"
            )
        show = streamer.put if isinstance(streamer, generation.Streamer) else streamer
        if show is not None and not callable(show):
            raise TypeError(
                f"generate: streamer is {shown(streamer)}, needs a function of a piece, or an "
                "object with put(piece) and end()"
            )
        show = show if self.transformer.ranks.communicator.rank == 0 else None
        read_whole("generate", "max_batch", max_batch)
        requests = [
            self.request(
                ids,
                self.check_room(len(ids), max_new_tokens),
                is_text=prompts.is_text,
                show=show,
                stop=stop,
                draft=None if edit else draft,
                **{**sampling, "seed": seed},
            )
            for ids, seed in zip(prompts.ids, own_seeds, strict=True)
        ]
        try:
            generation.generate(
                self.transformer,
                requests,
                cache=self.pages("generate", cache, cache_memory, cache_dtype),
                max_batch=max_batch,
                share_answers=cache is not None,
                edit=edit,
                report=report,
            )
        finally:
            if isinstance(streamer, generation.Streamer):
                streamer.end()
        results = [
            request.text.text if prompts.is_text else request.text.new_ids for request in requests
        ]
        return results if prompts.is_list else results[0]

    def batch(
        self,
        *,
        max_batch: int = MAX_BATCH,
        cache: KVCache | PagedKVCache | None = None,
        cache_memory: int | None = None,
        cache_dtype: DTypeLike = "float32",
    ) -> Batch:
        """Texts that come and go while others are continued: see `simdformer.text.Batch`. The
        parameters are those of `generate`."""
        return Batch(
            self,
            self.pages("batch", cache, cache_memory, cache_dtype),
            max_batch=read_whole("batch", "max_batch", max_batch),
            share_answers=cache is not None,
        )

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        max_new_tokens: int | None = None,
        *,
        template_variables: Mapping[str, Any] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> str:
        """What the assistant says next in a conversation.

        Parameters
        ----------
        messages : list of {"role": "system" | "user" | "assistant" | ..., "content": text}
            What was said so far, as the checkpoint's own template writes it.
        max_new_tokens, **options
            As in `generate`.
        template_variables : dict, optional
            What else the template reads, `{"enable_thinking": False}` for instance.

        Raises
        ------
        ValueError
            The model has no template, or as `generate`.
        CheckpointError
            The template fails or refuses the messages, takes too long or too much memory. It runs
            in jinja2's sandbox, in a process of its own. (It is a ValueError.)
        ImportError
            The package jinja2 is missing.
        """
        ids = self.chat_ids(messages, template_variables)
        text: Any = self.generate(ids, max_new_tokens, **options)
        return str(text)


def seeds(seed: int | Sequence[int] | None, count: int) -> Sequence[int | None]:
    """One for each prompt."""
    if seed is None or isinstance(seed, int | np.integer):
        return [seed] * count
    if not isinstance(seed, Sequence) or len(seed) != count:
        raise ValueError(
            f"generate: seed is {shown(seed)}, needs a number, or one for each of the {count} "
            "prompts"
        )
    return seed
