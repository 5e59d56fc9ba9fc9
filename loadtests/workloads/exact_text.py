"""Generates texts with an exact number of tokens, for a model's tokenizer."""

from __future__ import annotations

import random
from collections import Counter

from tokenizers import Tokenizer

from loadtests.errors import LoadError
from loadtests.workloads.text_generator import COMMON_WORDS

_MIN_COMMON_WORDS = 200
_MIN_WORDS = 16
_MAX_VOCABULARY = 20_000
_TRIAL_WORDS = 5_000
_MAX_ATTEMPTS = 8


class ExactTextGenerator:
    """Generates texts of words that are one token each, so that the number of words is the number of tokens.

    Counts are those of the tokenizer with its special tokens, as the server counts a plain prompt. One long text is
    used to check that counts add up; if they do not, each text is counted and corrected. Raises LoadError for a file
    that is not a tokenizer, or has too few such words.
    """

    def __init__(self, data: bytes, name: str) -> None:
        self._tokenizer = _tokenizer(data, name)
        between = [word for word in COMMON_WORDS if self._is_one(word)]
        if len(between) < _MIN_COMMON_WORDS:
            between = [word for word in self._vocabulary() if self._is_one(word)]
        if len(between) < _MIN_WORDS:
            raise LoadError(
                f"the tokenizer {name} has only {len(between)} words of one token; leave it out and set "
                f"tokens_per_word",
                "workload_invalid",
            )
        # A word without a leading space may be more tokens: texts begin with words that all have the same number.
        extra = {word: self._count(f"{word} {between[0]}") - 2 for word in between}
        self.overhead = Counter(extra.values()).most_common(1)[0][0]
        self._words = between
        self._first_words = [word for word in between if extra[word] == self.overhead]
        trial = self.piece(_TRIAL_WORDS, random.Random(0), first=True)
        self._is_additive = self._count(trial) == _TRIAL_WORDS + self.overhead

    def piece(self, tokens: int, source: random.Random, first: bool = False) -> str:
        begin = [source.choice(self._first_words if first else self._words)]
        return " ".join(begin + source.choices(self._words, k=max(0, tokens - 1)))

    def fit(self, text: str, tokens: int, source: random.Random) -> str:
        if self._is_additive:
            return text
        words = text.split(" ")
        for _ in range(_MAX_ATTEMPTS):
            missing = tokens - self._count(" ".join(words))
            if missing == 0:
                break
            words = words + source.choices(self._words, k=missing) if missing > 0 else words[:missing] or words[:1]
        return " ".join(words)

    def _count(self, text: str) -> int:
        return len(self._tokenizer.encode(text).ids)

    def _is_one(self, word: str) -> bool:
        """Return whether the word is one more token between two words."""
        return self._count(f"the {word} the") - self._count("the the") == 1

    def _vocabulary(self) -> list[str]:
        """Return lower-case words among the tokenizer's first, and thus most frequent, entries, in the order of their
        ids."""
        ids = range(min(self._tokenizer.get_vocab_size(with_added_tokens=False), _MAX_VOCABULARY))
        words = (self._tokenizer.decode([number]).strip() for number in ids)
        return list(dict.fromkeys(w for w in words if len(w) > 1 and w.isascii() and w.isalpha() and w.islower()))


def _tokenizer(data: bytes, name: str) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_buffer(data)
    except Exception as error:  # the library raises no narrower type
        raise LoadError(f"the tokenizer {name} can't be read: {error}", "workload_invalid") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
