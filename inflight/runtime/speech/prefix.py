"""Reads the prefix of a transcript, `<|startoftranscript|><|en|><|transcribe|>`, as token ids."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tokenizers import Tokenizer

from inflight.common.request_error import RequestError
from inflight.runtime.speech.clip import DETECTED, SpecialTokens

_FORM = re.compile(
    r"(<\|startofprev\|>(?P<words>((?!<\|).)*))?<\|startoftranscript\|>"
    r"(<\|(?P<language>(?!trans|notimestamps)[a-z]+)\|>)?(<\|(?P<task>transcribe|translate)\|>)?(?P<plain><\|notimestamps\|>)?",
    re.DOTALL,
)
_USUAL = "<|startoftranscript|><|en|><|transcribe|><|notimestamps|>"
"""What an empty prefix means, as upstream has it."""
_FURTHER_CHARACTERS = 8
"""Characters per token of earlier words that are tokenized at most."""


def special_tokens(tokenizer: Tokenizer, languages: Sequence[str]) -> SpecialTokens:
    """Return the special tokens of a Whisper model. Raises ValueError if the tokenizer is not Whisper's."""

    def find(name: str) -> int:
        found = tokenizer.token_to_id(f"<|{name}|>")
        if found is None:
            raise ValueError(f"tokenizer.json has no <|{name}|>; build the engine again")
        return int(found)

    return SpecialTokens(
        end=find("endoftext"),
        start=find("startoftranscript"),
        previous=find("startofprev"),
        transcribe=find("transcribe"),
        translate=find("translate"),
        no_timestamps=find("notimestamps"),
        languages={code: find(code) for code in languages},
    )


class Prefixes:
    """Reads prefixes for one model, whose decoder has `positions` for the prefix and the transcript."""

    def __init__(self, tokenizer: Tokenizer, tokens: SpecialTokens, positions: int) -> None:
        self._tokenizer = tokenizer
        self._tokens = tokens
        self._most_words = positions // 2 - 1

    def read(self, text: str) -> tuple[int, ...]:
        """Return the token ids of a prefix, with `DETECTED` in the place of a missing language.

        Only the last of too many earlier words are kept, as in OpenAI's code. Raises RequestError: `invalid_parameter`
        for another form, `unsupported_input` for a language or task that the model does not have.
        """
        found = _FORM.fullmatch(text or _USUAL)
        if found is None:
            raise RequestError(
                f"TEXT_PREFIX is {text[:80]!r}; send <|startoftranscript|>, then a language such as <|en|>, then"
                " <|transcribe|> or <|translate|>, then <|notimestamps|>, of which you may leave out all but the first;"
                " earlier words go before it, after <|startofprev|>",
                "invalid_parameter",
            )
        tokens, words, plain = self._tokens, found["words"], [self._tokens.no_timestamps] if found["plain"] else []
        earlier = [tokens.previous, *self._words(words)] if words and words.strip() else []
        return *earlier, tokens.start, *self._language_and_task(found["language"], found["task"]), *plain

    def _language_and_task(self, language: str | None, task: str | None) -> list[int]:
        known = self._tokens.languages
        if not known:
            if language not in (None, "en") or task == "translate":
                raise RequestError(
                    "the model transcribes English only; leave the language out, and ask for no translation, or name a"
                    " model for several languages",
                    "unsupported_input",
                )
            return []
        if language is not None and language not in known:
            raise RequestError(
                f"the model does not know the language {language!r}; name one of {', '.join(known)}, or leave it out",
                "unsupported_input",
            )
        first = DETECTED if language is None else known[language]
        return [first, self._tokens.translate if task == "translate" else self._tokens.transcribe]

    def _words(self, words: str) -> list[int]:
        tail = words.strip()[-_FURTHER_CHARACTERS * self._most_words :]
        ids: list[int] = self._tokenizer.encode(" " + tail, add_special_tokens=False).ids
        return ids[-self._most_words :]
