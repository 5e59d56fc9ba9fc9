"""Converts the texts of encoders to token ids, and cuts or refuses those that are too long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import Encoding, Tokenizer

from inflight.common.request_error import RequestError
from inflight.runtime.encoders.encoder import EncoderInput

_CHARACTERS_PER_TOKEN = 8
"""A text with more characters per token of the limit is first tokenized in part."""
_MAX_CHARACTERS = 1 << 20
"""A longer text whose beginning of this length has few tokens, such as one of spaces, is refused."""


@dataclass(frozen=True, eq=False)
class TokenizedText:
    """A text as the encoder takes it, and whether it was cut."""

    input: EncoderInput
    truncated: bool = False


@dataclass(frozen=True)
class PlainText:
    """A text, or a query that was checked and a document, to tokenize. `truncate` cuts a text or document that is too
    long."""

    text: str
    truncate: bool
    document: str | None = None

    @property
    def characters(self) -> int:
        return len(self.text) + len(self.document or "")


class EncoderTokenizer:
    """Tokenizes with the model's special tokens, unless `special` is false. `max_tokens` is the longest text, special
    tokens included."""

    def __init__(
        self, tokenizer: Tokenizer, max_tokens: int, vocabulary_size: int, with_types: bool, special: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens
        self._vocabulary_size = vocabulary_size
        self._with_types = with_types
        self._special = special

    def tokenize(self, texts: Sequence[PlainText]) -> list[TokenizedText | RequestError]:
        """Return each text as token ids, or why it is refused (`prompt_too_long`, `empty_prompt`, and
        `invalid_token_ids` where the tokenizer has more tokens than the model)."""
        errors: list[RequestError | None] = [None] * len(texts)
        inputs: list[Any] = []
        for index, text in enumerate(texts):
            try:
                inputs.append(self._bounded(text))
            except RequestError as error:
                errors[index] = error
        encodings = iter(self._tokenizer.encode_batch(inputs, add_special_tokens=self._special))
        return [error or self._checked(next(encodings), text) for error, text in zip(errors, texts, strict=True)]

    def check_query(self, query: str) -> None:
        """Check the query of all pairs of a request. Raises RequestError unless it leaves room for a document's token.

        The number of characters is bounded too, since the query is tokenized again with each document.
        """
        most = _CHARACTERS_PER_TOKEN * self._max_tokens
        if len(query) > most:
            raise self._query_too_long(f"{len(query)} characters, and at most {most} are read")
        tokens = len(self._tokenizer.encode_batch([(query, "")])[0].ids)  # a batch does not keep Python's lock
        if tokens >= self._max_tokens:
            raise self._query_too_long(f"{tokens} tokens, special ones included, which leaves no room for a document")

    def check_ids(self, ids: Any, truncate: bool) -> TokenizedText:
        """Return a text that was sent as token ids, which get no special tokens. Raises RequestError."""
        if not len(ids):
            raise _no_token()
        if ids.min() < 0 or ids.max() >= self._vocabulary_size:
            outside = int(ids.min() if ids.min() < 0 else ids.max())
            raise self._outside(outside, "send texts, or ids of the engine's own tokenizer")
        if len(ids) > self._max_tokens and not truncate:
            raise self._too_long(f"{len(ids)} tokens")
        return TokenizedText(EncoderInput(ids[: self._max_tokens].astype(np.int32)), len(ids) > self._max_tokens)

    def _bounded(self, text: PlainText) -> Any:
        """Return what to tokenize: of a huge text, only a part with more tokens than are used.

        Raises RequestError for a text that is too long and is not to be cut, before it is tokenized completely.
        """
        if text.document is None:
            return self._head(text.text, text.truncate)
        return text.text, self._head(text.document, text.truncate)

    def _head(self, text: str, truncate: bool) -> str:
        """Return a text, or its beginning with more than twice the tokens of the limit, if it is to be cut.

        Raises RequestError if it is too long and not to be cut. Tokens at the end of a beginning may differ from those
        of the whole text, but those within the limit don't.
        """
        size = _CHARACTERS_PER_TOKEN * self._max_tokens
        while size < len(text):
            head = text[:size]
            if len(self._tokenizer.encode_batch([head], add_special_tokens=False)[0].ids) > 2 * self._max_tokens:
                if truncate:
                    return head
                raise self._too_long(f"{len(text)} characters with more than {2 * self._max_tokens} tokens")
            if size >= _MAX_CHARACTERS:
                raise self._too_long(f"{len(text)} characters, of which only the first {size} were read")
            size *= 2
        return text

    def _checked(self, encoding: Encoding, text: PlainText) -> TokenizedText | RequestError:
        ids = np.array(encoding.ids, dtype=np.int32)
        types = np.array(encoding.type_ids, dtype=np.int32) if self._with_types else None
        excess = len(ids) - self._max_tokens
        if not len(ids):
            return _no_token()
        if ids.max() >= self._vocabulary_size:
            return self._outside(int(ids.max()), f"leave {encoding.tokens[int(ids.argmax())]!r} out of the text")
        if excess <= 0:
            return TokenizedText(EncoderInput(ids, types))
        if not text.truncate:
            return self._too_long(f"{len(ids)} tokens")
        # Cut at the end of the text, or of the document, but keep the special tokens after it.
        part = 0 if text.document is None else 1
        places = [place for place, sequence in enumerate(encoding.sequence_ids) if sequence == part]
        if excess > len(places):
            return self._too_long(f"{len(ids)} tokens")
        kept = np.delete(np.arange(len(ids)), places[len(places) - excess :])
        return TokenizedText(EncoderInput(ids[kept], None if types is None else types[kept]), truncated=True)

    def _outside(self, token_id: int, step: str) -> RequestError:
        return RequestError(
            f"token id {token_id} is outside the vocabulary of {self._vocabulary_size} tokens; {step}",
            "invalid_token_ids",
        )

    def _query_too_long(self, what: str) -> RequestError:
        return RequestError(
            f"query has {what}; the engine takes {self._max_tokens} tokens, so shorten the query", "prompt_too_long"
        )

    def _too_long(self, what: str) -> RequestError:
        return RequestError(
            f"the text has {what}, and the engine takes {self._max_tokens} tokens, special ones"
            f" {'included' if self._special else 'aside'}; shorten it, or set truncate",
            "prompt_too_long",
        )


def _no_token() -> RequestError:
    return RequestError("the text has no token; send at least one", "empty_prompt")
