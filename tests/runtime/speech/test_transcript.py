"""What becomes of decoded tokens: segments, words, silence, or another try at a higher temperature."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from inflight.runtime.encoders.batch_runner import Requeue
from inflight.runtime.speech.clip import DETECTED, Clip, Decoded, Decoding
from inflight.runtime.speech.prefix import special_tokens
from inflight.runtime.speech.transcript import Transcript, TranscriptMaker
from tests.runtime.speech.whisper_tokens import DOT, word_tokenizer

TOKENIZER = word_tokenizer()
TOKENS = special_tokens(TOKENIZER, ["en", "de"])
MAKER = TranscriptMaker(TOKENIZER, TOKENS)
GOOD, POOR = -0.3, -1.5
REPEATED = (1,) * 60


def at(seconds: float) -> int:
    return TOKENS.first_timestamp + round(seconds / 0.02)


def clip(seconds: float = 10.0, further: tuple[float, ...] = (0.2, 0.4), **fields: Any) -> Clip:
    prompt = (TOKENS.start, TOKENS.languages["de"], TOKENS.transcribe)
    return Clip(np.zeros(round(seconds * 16000), np.float32), prompt, further=further, **fields)


def made(each: Clip, decoded: Decoded) -> Transcript:
    result = MAKER.make(each, decoded)
    assert isinstance(result, Transcript)
    return result


@pytest.mark.parametrize(
    ("tokens", "spans"),
    [
        ([at(0), 1, 2, at(2), at(2.5), 3, at(4)], [(0, 2, " b c"), (2.5, 4, " d")]),
        ([at(0), 1, at(9.9), at(9.9), 2, 3], [(0, 9.9, " b"), (9.9, 10, " c d")]),
        ([1, 2], [(0, 10, " b c")]),
        ([at(1), 1, at(29)], [(1, 10, " b")]),
        ([at(0), 1, at(0.1), at(0.1), at(5)], [(0, 0.1, " b")]),
        ([at(0)], []),
        ([], []),
    ],
    ids=["pairs", "hardly a rest", "no timestamps", "behind the end", "hardly begun", "nothing", "no tokens"],
)
def test_segments_are_between_timestamps_and_lose_no_text(
    tokens: list[int], spans: list[tuple[float, float, str]]
) -> None:
    transcript = made(clip(), Decoded(tuple(tokens), GOOD, 0.0))
    assert [(part["start"], part["end"], part["text"]) for part in transcript.segments] == spans
    assert transcript.text == "".join(text for _, _, text in spans).strip()
    assert transcript.language == "de"


@pytest.mark.parametrize("last", [(2, 3), (at(5),), ()], ids=["unfinished text", "an empty segment", "nothing"])
def test_the_rest_of_a_clip_is_decoded_from_the_last_segment_that_is_finished(last: tuple[int, ...]) -> None:
    prompt = (TOKENS.start, DETECTED, TOKENS.transcribe)
    tried = (Decoded(REPEATED, GOOD, 0.0),)
    whole = replace(clip(further=(0.4,), decoding=Decoding(temperature=0.2), tried=tried), prompt=prompt)
    german = TOKENS.languages["de"]
    begun = Decoded((at(0), 1, at(4), at(4), *last), GOOD, 0.0, 0.2, german, (0.1, 0.9, 5.0, 6.0), (0.5, 0.5, 0.5))
    requeued = MAKER.make(whole, begun)
    assert isinstance(requeued, Requeue)
    rest = requeued.input
    assert isinstance(rest, Clip)
    assert (rest.seconds, rest.tried, rest.decoding.temperature, rest.further) == (6.0, (), 0.0, (0.2, 0.4))
    assert rest.prompt == (TOKENS.start, german, TOKENS.transcribe)
    end = Decoded((at(1), 2, at(3)), GOOD, 0.0, 0.0, None, (1.0, 2.0), (0.5,))
    transcript = made(rest, end)
    spans = [(part["start"], part["end"], part["text"], part["words"][0]["start"]) for part in transcript.segments]
    assert spans == [(0.1, 4, " b", 0.1), (5, 7, " c", 5.0)]
    assert (transcript.text, transcript.language) == ("b c", "de")


def test_words_have_the_times_of_their_tokens_within_their_segment() -> None:
    tokens = (at(0), 1, 2, at(2), at(2), 3, at(4))
    decoded = Decoded(tokens, GOOD, 0.0, times=(0.1, 0.6, 2.9, 3.5), probabilities=(0.5, 0.6, 0.7))
    words = [part["words"] for part in made(clip(), decoded).segments]
    assert words == [
        [
            {"word": " b", "start": 0.1, "end": 0.6, "probability": 0.5},
            {"word": " c", "start": 0.6, "end": 2, "probability": 0.6},
        ],
        [{"word": " d", "start": 2.9, "end": 3.5, "probability": 0.7}],
    ]


def test_pauses_belong_to_no_word() -> None:
    """A segment with words begins with its first one."""
    tokens = (at(0), 1, 2, DOT, 3, 4, 5, at(8.8), at(8.8), 1, 2, at(10))
    decoded = Decoded(tokens, GOOD, 0.0, times=(0, 5, 5.4, 5.5, 8, 8.5, 9, 9.6, 10), probabilities=(0.5,) * 8)
    spoken = [
        (part["start"], part["end"], [(word["word"], word["start"], word["end"]) for word in part["words"]])
        for part in made(clip(), decoded).segments
    ]
    assert spoken == [
        (4, 8.8, [(" b", 4, 5), (" c.", 5, 5.5), (" d", 7, 8), (" e", 8, 8.5), (" f", 8.5, 8.8)]),
        (9, 10, [(" b", 9, 9.6), (" c", 9.6, 10)]),
    ]


@pytest.mark.parametrize(
    ("decoded", "again"),
    [
        (Decoded((1, 2), GOOD, 0.9), False),
        (Decoded((1, 2), POOR, 0.1), True),
        (Decoded(REPEATED, GOOD, 0.1), True),
        (Decoded(REPEATED, POOR, 0.9), False),
    ],
    ids=["sure", "unsure", "repeated", "silent"],
)
def test_a_poor_transcript_is_decoded_again_at_the_next_temperature(decoded: Decoded, again: bool) -> None:
    first = clip(decoding=Decoding(beam_width=2))
    result = MAKER.make(first, decoded)
    assert isinstance(result, Requeue) is again
    if isinstance(result, Requeue):
        second = result.input
        assert isinstance(second, Clip)
        assert second.decoding == replace(first.decoding, temperature=0.2)
        assert (second.further, second.tried, second.samples) == ((0.4,), (decoded,), first.samples)


def test_silence_has_no_text() -> None:
    assert made(clip(), Decoded((1, 2), POOR, 0.9)) == Transcript("", "de", ())


def test_the_best_of_poor_transcripts_counts_which_does_not_repeat_itself() -> None:
    tried = Decoded(REPEATED, GOOD, 0.0), Decoded((4,), -1.2, 0.0, 0.2)
    worst = Decoded((5,), -1.3, 0.0, 0.4)
    assert made(clip(further=(), tried=tried), worst).text == "e"
    assert made(clip(further=(), tried=tried[:1]), Decoded((6,) * 60, POOR, 0.0)).text.startswith("b b")
