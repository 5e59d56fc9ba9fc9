"""Constrains answers to a guide: llguidance tells which tokens may come next."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import gbnf_to_lark
from numpy.typing import NDArray
from tokenizers import Tokenizer

from inflight.common.request_error import RequestError
from inflight.common.token_bytes import TokenBytes
from inflight.runtime.messages import DecodingGuide, GuideType

_ANY_JSON = '{"anyOf": [{"type": "object"}, {"type": "array"}]}'
"""Upstream's `json` has no schema and accepts an object or an array."""
_KEPT_GUIDES = 32
_WHITE_SPACE = " ?"
"""Between the parts of JSON. Models could go on with white space without end."""


class _Vocabulary:
    """A tokenizer as llguidance reads it."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, size: int, end_ids: Sequence[int]) -> None:
        spelled = TokenBytes(tokenizer)
        self.eos_token_id = end_ids[0]
        self.tokens = [spelled.of(token) or b"" for token in range(size)]
        # An id without text is none that an answer may have.
        self.special_token_ids = sorted({*spelled.special, *end_ids, *_empty(self.tokens)})
        self._tokenizer = tokenizer
        self._head = self._encode("")
        self._by_bytes = {text: token for token, text in enumerate(self.tokens) if token not in self.special_token_ids}
        self._longest = max(map(len, self.tokens))

    def __call__(self, text: bytes) -> list[int]:
        """Return a text's tokens in the middle of an answer, where tokenizers add no space."""
        ids = self._encode(text.decode(errors="replace"))
        inner = ids[len(self._head) :]
        if ids[: len(self._head)] == self._head and b"".join(self.tokens[each] for each in inner) == text:
            return inner
        return self._longest_tokens(text)

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode("\n" + text, add_special_tokens=False).ids
        return ids

    def _longest_tokens(self, text: bytes) -> list[int]:
        ids, at = [], 0
        while at < len(text):
            lengths = range(min(self._longest, len(text) - at), 0, -1)
            length = next((each for each in lengths if text[at : at + each] in self._by_bytes), None)
            if length is None:
                break
            ids.append(self._by_bytes[text[at : at + length]])
            at += length
        return ids


_NOTHING_ALLOWED = "NoExtensionBias"


class Guides:
    """Compiles guides for a model's vocabulary, and keeps the latest ones."""

    def __init__(self, tokenizer: Tokenizer, vocabulary_size: int, end_ids: Sequence[int]) -> None:
        vocabulary = _Vocabulary(tokenizer, vocabulary_size, end_ids)
        self._tokenizer = LLTokenizer(TokenizerWrapper(vocabulary), n_vocab=vocabulary_size, eos_token=list(end_ids))
        self._size = vocabulary_size
        self._compiled = lru_cache(_KEPT_GUIDES)(self._compile)

    def start(self, guide: DecodingGuide) -> Guided:
        """Return the state of an answer. Raises RequestError for a guide that is invalid or can't be enforced."""
        return Guided(self._compiled(guide).deep_copy(), self._size)

    def _compile(self, guide: DecodingGuide) -> LLMatcher:
        try:
            matcher = LLMatcher(self._tokenizer, _grammar(guide), log_level=0)
        except Exception as error:  # the converter of grammars raises its own
            raise _invalid(str(error)) from None
        begun = matcher.deep_copy()
        if not begun.is_error():
            begun.compute_bitmask()  # an error here would end the answer before its first token
        if begun.is_error():
            raise _invalid(begun.get_error().replace(_NOTHING_ALLOWED, "no answer can keep it"))
        return matcher


class Guided:
    """How far an answer has come in its guide."""

    def __init__(self, matcher: LLMatcher, vocabulary_size: int) -> None:
        self._matcher, self._size = matcher, vocabulary_size

    @property
    def error(self) -> str:
        """Why the answer can't go on; empty if it can."""
        return _first_line(self._matcher.get_error()) if self._matcher.is_error() else ""

    def mask(self, logits: NDArray[np.float32]) -> None:
        """Take away the tokens that may not come next: all of them once the guide is beyond the compiler's limits."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        np.putmask(logits, np.unpackbits(~bits, bitorder="little")[: self._size].view(bool), -np.inf)
        if self.error:
            logits[:] = -np.inf

    def ahead(self, tokens: Sequence[int]) -> Guided:
        """Return the state behind further tokens; where the guide forbids one, the state before it."""
        other = Guided(self._matcher.deep_copy(), self._size)
        other._matcher.try_consume_tokens(list(tokens))
        return other

    def take(self, token: int) -> None:
        """Go on with a token of the answer."""
        if not self._matcher.consume_token(token):
            raise RequestError(f"the guide can't go on: {self.error}; simplify it", "invalid_parameter")


def _grammar(guide: DecodingGuide) -> str:
    if guide.type in (GuideType.JSON, GuideType.JSON_SCHEMA):
        schema = guide.text if guide.type is GuideType.JSON_SCHEMA else _ANY_JSON
        return LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_pattern": _WHITE_SPACE})
    if guide.type is GuideType.REGEX:
        return LLMatcher.grammar_from_regex(guide.text)
    return LLMatcher.grammar_from_lark(gbnf_to_lark(guide.text))


def _empty(tokens: Sequence[bytes]) -> list[int]:
    return [token for token, text in enumerate(tokens) if not text]


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def _invalid(why: str) -> RequestError:
    return RequestError(f"guided_decoding_guide is invalid: {_first_line(why)}; correct it", "invalid_parameter")
