"""Prefixes of transcripts, for a model of two languages and for an English one."""

from __future__ import annotations

import pytest

from inflight.common.request_error import RequestError
from inflight.runtime.speech.clip import DETECTED
from inflight.runtime.speech.prefix import Prefixes, special_tokens
from tests.fixtures.errors import raises
from tests.runtime.speech.whisper_tokens import WORDS, word_tokenizer

TOKENIZER = word_tokenizer()
START, EN, DE, TRANSLATE, TRANSCRIBE, PREVIOUS, PLAIN = (
    TOKENIZER.token_to_id(f"<|{name}|>")
    for name in ("startoftranscript", "en", "de", "translate", "transcribe", "startofprev", "notimestamps")
)


def read(text: str, *languages: str) -> tuple[int, ...]:
    return Prefixes(TOKENIZER, special_tokens(TOKENIZER, languages), 20).read(text)


@pytest.mark.parametrize(
    ("text", "several", "english"),
    [
        ("", (START, EN, TRANSCRIBE, PLAIN), (START, PLAIN)),
        ("<|startoftranscript|>", (START, DETECTED, TRANSCRIBE), (START,)),
        ("<|startoftranscript|><|en|>", (START, EN, TRANSCRIBE), (START,)),
        ("<|startoftranscript|><|transcribe|><|notimestamps|>", (START, DETECTED, TRANSCRIBE, PLAIN), (START, PLAIN)),
        ("<|startoftranscript|><|notimestamps|>", (START, DETECTED, TRANSCRIBE, PLAIN), (START, PLAIN)),
        ("<|startoftranscript|><|de|><|translate|>", (START, DE, TRANSLATE), None),
        ("<|startoftranscript|><|translate|>", (START, DETECTED, TRANSLATE), None),
        (
            "<|startofprev|> d e<|startoftranscript|><|en|>",
            (PREVIOUS, 3, 4, START, EN, TRANSCRIBE),
            (PREVIOUS, 3, 4, START),
        ),
        ("<|startofprev|> <|startoftranscript|><|en|>", (START, EN, TRANSCRIBE), (START,)),
    ],
)
def test_a_prefix_is_read_as_the_model_knows_it(
    text: str, several: tuple[int, ...], english: tuple[int, ...] | None
) -> None:
    assert read(text, "en", "de") == several
    if english is None:
        with raises(RequestError, "unsupported_input"):
            read(text)
    else:
        assert read(text) == english


def test_only_the_last_of_too_many_earlier_words_are_kept() -> None:
    read_ids = read(f"<|startofprev|> {' '.join(WORDS)}<|startoftranscript|>")
    assert read_ids == (PREVIOUS, *range(len(WORDS) - 9, len(WORDS)), START)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("hello", "invalid_parameter"),
        ("<|en|><|startoftranscript|>", "invalid_parameter"),
        ("<|startoftranscript|><|transcribe|><|en|>", "invalid_parameter"),
        ("<|startoftranscript|> words", "invalid_parameter"),
        ("<|startofprev|> <|en|> b<|startoftranscript|>", "invalid_parameter"),
        ("<|startoftranscript|><|fr|>", "unsupported_input"),
    ],
)
def test_another_prefix_is_refused(text: str, code: str) -> None:
    with raises(RequestError, code):
        read(text, "en", "de")
