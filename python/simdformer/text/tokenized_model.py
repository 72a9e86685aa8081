"""A transformer and its tokenizer: from text to ids, and to requests that generation answers."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from simdformer.arguments import LARGEST, is_whole, read_several, read_whole, shown
from simdformer.models.cache import KVCache
from simdformer.models.config import ModelConfig
from simdformer.models.paged_cache import PagedKVCache
from simdformer.models.protocol import CausalModel
from simdformer.models.transformer import Transformer
from simdformer.models.weights import Weights
from simdformer.text.chat import ChatTemplate, check_messages
from simdformer.text.continuation import Continuation
from simdformer.text.continuous_batch import Request
from simdformer.text.draft import Draft, ModelDraft, PromptLookup
from simdformer.text.prompts import IdsOfText
from simdformer.text.sampling import Sampler
from simdformer.text.streaming import TextStream
from simdformer.text.tokenizer import Tokenizer
from simdformer.types import DTypeLike

__all__ = ["Stop", "TokenizedModel"]

Stop = str | int | Iterable[str | int]


class TokenizedModel:
    """What `generate` and `Batch` ask of a `LanguageModel`."""

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
    def weights(self) -> Weights:
        """Every tensor by name: `model.weights["layers.0.wq"]` is an array, unpacked when it is
        asked for."""
        return self.transformer.weights

    @property
    def config(self) -> ModelConfig:
        return self.transformer.config

    def chat_ids(
        self, messages: Any, template_variables: Mapping[str, Any] | None = None
    ) -> IdsOfText:
        """A conversation as the checkpoint's template writes it, up to where the assistant begins.
        Errors as those of `LanguageModel.chat`."""
        tokenizer = self._need_tokenizer("a chat")
        if self.chat_template is None:
            raise ValueError(
                "chat: the checkpoint has no chat template (chat_template in tokenizer_config.json "
                "or chat_template.jinja); use generate, or a checkpoint made for chat"
            )
        check_messages(messages)
        template, variables = self.chat_template, template_variables or {}
        ranks = self.transformer.ranks.communicator
        return IdsOfText(ranks.broadcast(lambda: template.ids(messages, tokenizer, variables)))

    def request(
        self,
        ids: list[int],
        max_new_tokens: int,
        *,
        is_text: bool,
        show: Callable[[Any], object] | None = None,
        stop: Stop | None = None,
        draft: "TokenizedModel | CausalModel | str | None" = None,
        **sampling: Any,
    ) -> Request:
        """A prompt with all that its continuation takes: what chooses, and what ends it."""
        stop_ids, stop_strings = self._stops(stop)
        text = Continuation(
            ids,
            stop_ids=stop_ids,
            stop_strings=stop_strings,
            text_stream=self._text_stream(ids) if is_text or stop_strings else None,
            show=show,
            show_ids=not is_text,
        )
        return Request(
            text,
            Sampler(**sampling),
            max_new_tokens,
            self._draft(draft, len(ids) + max_new_tokens),
            self.transformer.ranks.communicator,
        )

    def _draft(
        self, draft: "TokenizedModel | CausalModel | str | None", positions: int
    ) -> Draft | None:
        """Who proposes ids in a text of up to so many positions."""
        if draft is None:
            return None
        if isinstance(draft, str) and draft == "prompt":
            return PromptLookup()
        model = draft.transformer if isinstance(draft, TokenizedModel) else draft
        if not isinstance(model, CausalModel):
            raise ValueError(
                f'generate: draft is {shown(draft)}, needs "prompt" or a model with the same '
                "vocabulary"
            )
        if model.config.vocab_size != self.config.vocab_size:
            raise ValueError(
                f"generate: draft has a vocabulary of {model.config.vocab_size}, needs that of "
                f"the model, {self.config.vocab_size}"
            )
        return ModelDraft(model, positions)

    def pages(
        self,
        function: str,
        cache: KVCache | PagedKVCache | None,
        memory: int | None,
        dtype: DTypeLike,
    ) -> PagedKVCache:
        """Those of the cache given, or new ones of that many bytes."""
        if cache is None:
            return self.transformer.new_pages(
                memory, dtype=dtype, argument=f"{function}: cache_memory"
            )
        pages = cache.pages if isinstance(cache, KVCache) else cache
        if not isinstance(pages, PagedKVCache):
            raise TypeError(
                f"{function}: cache is {shown(cache)}, needs a KVCache; make one with new_cache()"
            )
        if memory is not None:
            raise ValueError(f"{function}: cache has its memory already; leave out cache_memory")
        self.transformer.check_pages(pages)
        return pages

    def check_room(self, prompt_len: int, max_new_tokens: int | None) -> int:
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

    @property
    def _has_tokens(self) -> bool:
        return self._tokenizer is not None and not isinstance(self._tokenizer, ImportError)

    def _labels(self, ids: Iterable[int]) -> list[str]:
        """Each token by itself as text; its id where there is no tokenizer."""
        if self._has_tokens and self.tokenizer is not None:
            return self.tokenizer.to_str_tokens(ids)
        return [str(int(id)) for id in ids]

    def _ids(self, text: Any) -> Any:
        return self._need_tokenizer("text", "model").encode(text) if isinstance(text, str) else text

    def encode(self, text: str) -> list[int]:
        return self._need_tokenizer("a prompt of text").encode(text)

    def _stops(self, stop: Stop | None) -> tuple[frozenset[int], list[str]]:
        """The ids and the strings that end a text."""
        given = read_several("generate", "stop", stop, "strings or ids")
        ids = [int(one) for one in given if is_whole(one, least=0) and one <= LARGEST]
        strings = [one for one in given if isinstance(one, str)]
        if len(ids) + len(strings) != len(given) or "" in strings:
            raise ValueError(
                f"generate: stop is {shown(stop)}, needs strings that are not empty, or ids"
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
