"""Text from tokens as they come: the same as decoding them at once, up to the first stop word."""

from __future__ import annotations

import random

import pytest

from inflight.text.detokenizer import Detokenizer
from inflight.text.stop_words import StopWords
from inflight.text.text_stream import TextDelta, TextStream
from inflight.text.tokenizer import load_tokenizer
from tests.fixtures.engines import TinyEngine

TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "抹茶ラテは京都の宇治から。",
    "Tea 🍵, cake 🍰, a family 👩‍👩‍👧‍👦 and ❤️‍🔥",
]
SEED = 5


@pytest.fixture(scope="module")
def detokenizer(tiny_engine: TinyEngine) -> Detokenizer:
    return Detokenizer(load_tokenizer(str(tiny_engine("llama"))))


@pytest.fixture(scope="module")
def encode(tiny_engine: TinyEngine) -> object:
    tokenizer = load_tokenizer(str(tiny_engine("llama")))
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def test_a_character_that_is_never_whole_is_not_lost_behind_many_end_tokens(
    detokenizer: Detokenizer, tiny_engine: TinyEngine
) -> None:
    tokenizer = load_tokenizer(str(tiny_engine("llama")))
    half = tokenizer.encode("tea 🍵", add_special_tokens=False).ids[:-1]
    ids = [*half, *[min(detokenizer.special_token_ids)] * 20]
    whole = tokenizer.decode(ids, skip_special_tokens=True)
    assert whole.endswith("\ufffd")
    assert "".join(piece.text for piece in told(stream(detokenizer), ids)) == whole


def stream(
    detokenizer: Detokenizer, *stop_words: str, prompt_ids: tuple[int, ...] = (), min_tokens: int = 0
) -> TextStream:
    search = StopWords((), stop_words, min_tokens, lambda: detokenizer, prompt_ids) if stop_words else None
    return TextStream(detokenizer, prompt_ids, search)


def told(text: TextStream, ids: list[int], at_once: random.Random | None = None) -> list[TextDelta]:
    """Give the tokens one by one, or in chunks of random length, up to the end or a stop word."""
    pieces: list[TextDelta] = []
    while ids:
        count = 1 if at_once is None else at_once.randint(1, 4)
        chunk, ids = ids[:count], ids[count:]
        pieces.append(text.feed(chunk, [-0.5] * len(chunk), ended=not ids))
        if pieces[-1].stopped:
            break
    return pieces


@pytest.mark.parametrize("text", TEXTS)
def test_deltas_add_up_to_the_text_and_each_character_comes_whole(
    detokenizer: Detokenizer, encode: object, text: str
) -> None:
    assert callable(encode)
    pieces = told(stream(detokenizer), encode(text))
    assert "".join(piece.text for piece in pieces) == text
    assert not any("\ufffd" in piece.text for piece in pieces)
    assert sum(len(piece.token_ids) for piece in pieces) == len(encode(text))


@pytest.mark.parametrize(
    "stop_word", ["own fox j", "fox", " lazy", "T", "dog.", "ラテは", "🍰, a f", "‍👧‍", "of no text"]
)
def test_text_is_cut_before_the_stop_word_however_the_tokens_come(
    detokenizer: Detokenizer, encode: object, stop_word: str
) -> None:
    assert callable(encode)
    chance = random.Random(SEED)
    for text in TEXTS:
        before, found, _ = text.partition(stop_word)
        for way in (None, chance, chance):
            pieces = told(stream(detokenizer, stop_word), encode(text), way)
            assert "".join(piece.text for piece in pieces) == before
            assert pieces[-1].stopped == bool(found)


def test_nothing_is_held_back_that_begins_no_stop_word(detokenizer: Detokenizer, encode: object) -> None:
    assert callable(encode)
    ids = encode(TEXTS[0])
    assert told(stream(detokenizer, "zebra"), ids) == told(stream(detokenizer), ids)


def test_log_probabilities_come_with_the_tokens_that_are_said(detokenizer: Detokenizer, encode: object) -> None:
    assert callable(encode)
    pieces = told(stream(detokenizer, "jumps"), encode(TEXTS[0]))
    assert sum(len(piece.log_probs) for piece in pieces) == sum(len(piece.token_ids) for piece in pieces) > 0


@pytest.mark.parametrize("stop", ["", "jum"])
def test_an_answer_continues_its_prompt(detokenizer: Detokenizer, encode: object, stop: str) -> None:
    assert callable(encode)
    prompt, answer = encode("The quick brown"), encode("The quick brown fox jumps")
    pieces = told(stream(detokenizer, *filter(None, [stop]), prompt_ids=tuple(prompt)), answer[len(prompt) :])
    assert "".join(piece.text for piece in pieces) == (" fox " if stop else " fox jumps")


def test_the_first_tokens_are_said_whatever_they_hold(detokenizer: Detokenizer, encode: object) -> None:
    assert callable(encode)
    ids = encode("fox fox fox")
    pieces = told(stream(detokenizer, "fox", min_tokens=len(encode("fox"))), ids)
    assert "".join(piece.text for piece in pieces) == "fox "
