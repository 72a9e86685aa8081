"""A transformer with its tokenizer: what `from_pretrained` returns."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypedDict, Unpack, overload

import numpy as np
import numpy.typing as npt

from simdformer.arguments import LARGEST, is_whole, read_several, read_whole, shown
from simdformer.models.cache import KVCache
from simdformer.models.config import ModelConfig
from simdformer.models.observer import Edit
from simdformer.models.transformer import Transformer
from simdformer.text import generate as generation
from simdformer.text.chat import ChatTemplate, check_messages
from simdformer.text.loss import token_losses
from simdformer.text.prompts import IdsOfText, is_texts, read_prompts
from simdformer.text.sampling import Sampler
from simdformer.text.streaming import TextStream
from simdformer.text.tokenizer import Tokenizer
from simdformer.types import DTypeLike, NumpyArrayLike

__all__ = ["GenerateOptions", "LanguageModel"]

Stop = str | int | Iterable[str | int]
TextOrIds = NumpyArrayLike  # a text, ids, or a list of either

# Of the config, in a repr.
SHOWN = ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "vocab_size", "max_seq_len")


class GenerateOptions(TypedDict, total=False):
    """The keywords of `LanguageModel.generate`, which explains them."""

    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float
    seed: int | None
    stop: Stop | None
    streamer: Callable[[Any], object] | generation.Streamer | None
    report: generation.Report | None
    cache_dtype: DTypeLike
    edit: Mapping[str, Edit] | None


class LanguageModel:
    """A `transformer` and its `tokenizer` (None when the checkpoint has none; an ImportError, which
    asking for it raises, when that takes a package that is missing).

    `model(ids)` gives logits, `model.generate(prompt)` text. `eos_ids` end a text, besides the
    tokenizer's own. `chat_template` (None when the checkpoint has none) is what `model.chat`
    writes a conversation with.
    """

    def __init__(
        self,
        transformer: Transformer,
        tokenizer: Tokenizer | ImportError | None = None,
        *,
        eos_ids: Iterable[int] = (),
        chat_template: ChatTemplate | None = None,
    ) -> None:
        self.transformer = transformer
        self._tokenizer = tokenizer
        self.eos_ids = tuple(eos_ids)
        self.chat_template = chat_template

    @property
    def tokenizer(self) -> Tokenizer | None:
        """None when the checkpoint has none; ImportError when its package is missing."""
        if isinstance(self._tokenizer, ImportError):
            raise self._tokenizer
        return self._tokenizer

    @property
    def config(self) -> ModelConfig:
        return self.transformer.config

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
        """Text or ids (L,) -> float32 logits (L,V); ids (B,L) -> (B,L,V); a list of texts -> a list
        of logits, each of its own length. Otherwise as `Transformer.__call__`."""
        if is_texts(ids):
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
        """The logits of a text or of ids, and every activation by name, as a `Trace`; of a list of
        texts a list of each. See `Transformer.run_with_cache`."""
        if is_texts(ids):
            several = [self.run_with_cache(one, names, edit=edit) for one in ids]
            return [logits for logits, _ in several], [trace for _, trace in several]
        logits, trace = self.transformer.run_with_cache(self._ids(ids), names, edit=edit)
        if self._tokenizer is not None and not isinstance(self._tokenizer, ImportError):
            tokens = [self._tokenizer.to_str_tokens(row) for row in np.atleast_2d(trace.ids)]
            trace.tokens = tokens if trace.ids.ndim == 2 else tokens[0]
        return logits, trace

    def loss(self, text: TextOrIds) -> Any:
        """The negative log-likelihood of each token but the first, given those before it, in nats:
        (L-1,) float64; of a list of texts, or of ids (B,L), a list of such.

        ValueError: text without a tokenizer, more ids than max_seq_len. TypeError: neither text
        nor ids.

        >>> import simdformer as sf
        >>> model = sf.from_pretrained(sf.demo_path())
        >>> losses = model.loss("Mia has a red kite.")
        >>> losses.shape, bool(losses.mean() < 5)
        ((6,), True)
        """
        prompts = read_prompts(text, self._ids, function="loss", name="text")
        losses = [token_losses(self.transformer, ids) for ids in prompts.ids]
        return losses if prompts.is_list else losses[0]

    def new_cache(
        self, max_seq_len: int | None = None, batch: int = 1, dtype: DTypeLike = "float32"
    ) -> KVCache:
        """An empty cache for this model: see `Transformer.new_cache`."""
        return self.transformer.new_cache(max_seq_len, batch, dtype)

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
    def generate(
        self,
        prompt: Any,
        max_new_tokens: int | None = None,
        *,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float = 1.0,
        seed: int | None = None,
        stop: Stop | None = None,
        streamer: Callable[[Any], object] | generation.Streamer | None = None,
        report: generation.Report | None = None,
        cache_dtype: DTypeLike = "float32",
        edit: Mapping[str, Edit] | None = None,
    ) -> Any:
        """Continues a prompt: text in, the new text out; ids in, the new ids out.

        Parameters
        ----------
        prompt : str, ids (L,), or a list of either
            A list gives a list of results; its prompts may differ in length.
        max_new_tokens : int, optional
            None: as many as max_seq_len has room for.
        temperature : float
            0: the likeliest id every time. The higher, the braver.
        top_k, top_p, min_p, repetition_penalty, seed
            See `simdformer.text.Sampler`.
        stop : str, int, or several of them
            What ends the text and is cut off, besides the tokenizer's end of text.
        streamer : callable, or an object with put(piece) and end()
            Is given the new text (for ids: each new id) as it comes, but never part of a
            character or of a stop string. For one prompt only.
        report : simdformer.text.Report, optional
            Is filled in with counts, times and the last logits.
        cache_dtype : {"float32", "float16", "bfloat16"}
            Of the KV cache; 16 bits take half of the memory.
        edit : dict of name or glob -> function
            Changes activations on their way, see `Transformer.__call__`. A long prompt is read in
            chunks of 512 ids, then id after id; of several prompts each is read by itself, and
            there is a batch axis.

        Raises
        ------
        ValueError
            The prompt is empty, max_seq_len has no room for it, text without a tokenizer, a
            parameter that makes no sense.
        TypeError
            The prompt is neither text nor ids.

        Ctrl-C ends it with KeyboardInterrupt; the model stays usable.
        """
        prompts = read_prompts(prompt, self._encode)
        sampler = Sampler(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            seed=seed,
        )
        new = self._check_room(max(map(len, prompts.ids)), max_new_tokens)
        if streamer is not None and prompts.is_list:
            raise ValueError(
                "generate: a streamer follows one prompt, found is a list of them; call it for each"
            )
        show = streamer.put if isinstance(streamer, generation.Streamer) else streamer
        if show is not None and not callable(show):
            raise TypeError(
                f"generate: streamer is {shown(streamer)}, needed is a function of a piece, or an "
                "object with put(piece) and end()"
            )
        stop_ids, stop_strings = self._stops(stop)
        sequences = [
            generation.Continuation(
                ids,
                stop_ids=stop_ids,
                stop_strings=stop_strings,
                text_stream=self._text_stream(ids) if prompts.is_text or stop_strings else None,
                show=show,
                show_ids=not prompts.is_text,
            )
            for ids in prompts.ids
        ]
        try:
            generation.generate(
                self.transformer,
                sequences,
                max_new_tokens=new,
                sampler=sampler,
                report=report,
                cache_dtype=cache_dtype,
                edit=edit,
            )
        finally:
            if isinstance(streamer, generation.Streamer):
                streamer.end()
        results = [each.text if prompts.is_text else each.new_ids for each in sequences]
        return results if prompts.is_list else results[0]

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
            What the template asks for besides, `{"enable_thinking": False}` for instance.

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
        tokenizer = self._need_tokenizer("a chat")
        if self.chat_template is None:
            raise ValueError(
                "chat: the checkpoint has no chat template (chat_template in tokenizer_config.json "
                "or chat_template.jinja); use generate, or a checkpoint made for chat"
            )
        check_messages(messages)
        ids = self.chat_template.ids(messages, tokenizer, template_variables or {})
        text: Any = self.generate(IdsOfText(ids), max_new_tokens, **options)
        return str(text)

    def _check_room(self, prompt_len: int, max_new_tokens: int | None) -> int:
        """How many ids may follow a prompt of that length."""
        limit = self.config.max_seq_len
        new = max(limit - prompt_len, 1) if max_new_tokens is None else max_new_tokens
        new = read_whole("generate", "max_new_tokens", new)
        if prompt_len + new > limit:
            raise ValueError(
                f"generate: prompt of {prompt_len} ids and {new} new ones are more than max_seq_len"
                f" = {limit}; shorten them, or load the model with a larger max_seq_len"
            )
        return new

    def _ids(self, text: Any) -> Any:
        return self._need_tokenizer("text", "model").encode(text) if isinstance(text, str) else text

    def _encode(self, text: str) -> list[int]:
        return self._need_tokenizer("a prompt of text").encode(text)

    def _stops(self, stop: Stop | None) -> tuple[frozenset[int], list[str]]:
        """The ids and the strings that end a text."""
        given = read_several("generate", "stop", stop, "strings or ids")
        ids = [int(one) for one in given if is_whole(one, least=0) and one <= LARGEST]
        strings = [one for one in given if isinstance(one, str)]
        if len(ids) + len(strings) != len(given) or "" in strings:
            raise ValueError(
                f"generate: stop is {shown(stop)}, needed are strings that are not empty, or ids"
            )
        if strings:
            self._need_tokenizer("a stop string")
        # Where a file of the checkpoint names the ids that end a text, ids need no tokenizer.
        unneeded = isinstance(self._tokenizer, ImportError) and self.eos_ids
        own = () if unneeded or self.tokenizer is None else self.tokenizer.eos_ids
        return frozenset(ids) | frozenset(self.eos_ids) | frozenset(own), strings

    def _text_stream(self, prompt: list[int]) -> TextStream:
        tokenizer = self._need_tokenizer("text")
        stream = tokenizer.stream()
        # Tokenizers may write the first word of a text in another way: whether one begins here
        # depends on what is in front.
        stream.put(prompt[-1])
        return stream

    def _need_tokenizer(self, what: str, function: str = "generate") -> Tokenizer:
        if self.tokenizer is None:
            raise ValueError(
                f"{function}: {what} needs a tokenizer, and none was found beside the checkpoint; "
                "give one with from_pretrained(path, tokenizer=FILE), or give ids"
            )
        return self.tokenizer
