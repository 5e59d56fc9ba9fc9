"""Text from tokens as they come: the same as decoding them at once, up to the first stop word."""

from __future__ import annotations

import random

import pytest

from inflight.runtime.messages import Beam, GenerationRequest, SamplingConfig
from inflight.runtime.text.detokenizer import Detokenizer
from inflight.runtime.text.stop_words import StopWords
from inflight.runtime.text.text_stream import TextDecoderFactory, TextDelta
from inflight.runtime.text.tokenizer import load_tokenizer
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


@pytest.mark.parametrize("accumulate", [False, True])
def test_a_character_that_is_never_whole_is_not_lost_behind_many_end_tokens(
    detokenizer: Detokenizer, tiny_engine: TinyEngine, accumulate: bool
) -> None:
    tokenizer = load_tokenizer(str(tiny_engine("llama")))
    half = tokenizer.encode("tea 🍵", add_special_tokens=False).ids[:-1]
    ids = [*half, *[min(detokenizer.special_token_ids)] * 20]
    pieces = told(maker(detokenizer, accumulate=accumulate), ids)
    whole = tokenizer.decode(ids, skip_special_tokens=True)
    assert whole.endswith("\ufffd")
    assert (pieces[-1].text if accumulate else "".join(piece.text for piece in pieces)) == whole


def maker(
    detokenizer: Detokenizer,
    *stop_words: str,
    streaming: bool = True,
    accumulate: bool = False,
    prompt_ids: tuple[int, ...] = (),
    min_tokens: int = 0,
) -> TextDecoderFactory:
    words = GenerationRequest((), 0, sampling=SamplingConfig(min_tokens=min_tokens), stop_texts=stop_words)
    search = (lambda: StopWords(words, lambda: detokenizer)) if stop_words else (lambda: None)
    return TextDecoderFactory(detokenizer, search, streaming, accumulate, prompt_ids)


def told(maker: TextDecoderFactory, ids: list[int], at_once: random.Random | None = None) -> list[TextDelta]:
    """Give the tokens one by one, or in chunks of random length, up to the end or a stop word."""
    text = maker.create()
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
    pieces = told(maker(detokenizer), encode(text))
    assert "".join(piece.text for piece in pieces) == text
    assert not any("\ufffd" in piece.text for piece in pieces)
    assert sum(len(piece.token_ids) for piece in pieces) == len(encode(text))


@pytest.mark.parametrize("text", TEXTS)
def test_accumulated_text_is_the_whole_so_far(detokenizer: Detokenizer, encode: object, text: str) -> None:
    assert callable(encode)
    deltas = [piece.text for piece in told(maker(detokenizer), encode(text))]
    wholes = [piece.text for piece in told(maker(detokenizer, accumulate=True), encode(text))]
    assert wholes == ["".join(deltas[: count + 1]) for count in range(len(deltas))]
    assert wholes[-1] == text


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
            pieces = told(maker(detokenizer, stop_word), encode(text), way)
            assert "".join(piece.text for piece in pieces) == before
            assert pieces[-1].stopped == bool(found)
            whole = told(maker(detokenizer, stop_word, streaming=False), encode(text), way)[-1]
            assert (whole.text, whole.stopped) == (before, bool(found))


def test_nothing_is_held_back_that_begins_no_stop_word(detokenizer: Detokenizer, encode: object) -> None:
    assert callable(encode)
    ids = encode(TEXTS[0])
    assert told(maker(detokenizer, "zebra"), ids) == told(maker(detokenizer), ids)


def test_log_probabilities_come_with_the_tokens_that_are_said(detokenizer: Detokenizer, encode: object) -> None:
    assert callable(encode)
    for streaming in (True, False):
        pieces = told(maker(detokenizer, "jumps", streaming=streaming), encode(TEXTS[0]))
        assert sum(len(piece.log_probs) for piece in pieces) == sum(len(piece.token_ids) for piece in pieces) > 0


def test_a_whole_answer_stands_behind_its_prompt(detokenizer: Detokenizer, encode: object) -> None:
    assert callable(encode)
    prompt, answer = encode("The quick brown"), encode(" fox jumps")
    *before, last = told(maker(detokenizer, streaming=False, prompt_ids=tuple(prompt)), answer)
    assert last == TextDelta("The quick brown fox jumps", tuple(answer), (-0.5,) * len(answer))
    assert set(before) <= {TextDelta("")}
    *_, stopped = told(maker(detokenizer, "jum", streaming=False, prompt_ids=tuple(prompt)), answer)
    assert stopped.text == "The quick brown fox "


def test_the_first_tokens_are_said_whatever_they_hold(detokenizer: Detokenizer, encode: object) -> None:
    assert callable(encode)
    ids = encode("fox fox fox")
    pieces = told(maker(detokenizer, "fox", min_tokens=len(encode("fox"))), ids)
    assert "".join(piece.text for piece in pieces) == "fox "


def test_a_beam_is_cut_as_a_whole(detokenizer: Detokenizer, encode: object) -> None:
    assert callable(encode)
    ids = tuple(encode(TEXTS[0]))
    uncut = Beam(ids, (-0.5,) * len(ids), -0.5 * len(ids))
    assert maker(detokenizer).decode_beam(uncut) == (TEXTS[0], uncut)
    text, beam = maker(detokenizer, " fox").decode_beam(uncut)
    assert text == "The quick brown"
    assert beam.cumulative_log_prob == sum(beam.log_probs) == -0.5 * len(beam.token_ids)
