"""Blocks of audio: together they are the whole, none is over 30 s, and cuts are where nobody speaks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from inflight_client.audio.cut import MAX_SAMPLES, Block, cut

from tests.fixtures.voice import SAMPLE_RATE, silence, voice

VOICE = voice(24)


def blocks_of(*parts: Any) -> list[Block]:
    """The blocks of the parts joined, checked."""
    samples = np.concatenate(parts)
    blocks = list(cut([samples]))
    assert [block.index for block in blocks] == list(range(len(blocks)))
    edges = [0.0, *(block.end for block in blocks)]
    assert [block.start for block in blocks] == edges[:-1]
    assert edges[-1] == len(samples) / SAMPLE_RATE
    for block in blocks:
        assert len(block.samples) <= MAX_SAMPLES
        if len(block.samples):
            assert np.array_equal(block.samples, samples[round(block.start * SAMPLE_RATE) :][: len(block.samples)])
            assert len(block.samples) == round((block.end - block.start) * SAMPLE_RATE)
    return blocks


@pytest.mark.parametrize("seconds", [0.001, 1, 24])
def test_a_short_audio_is_one_block_as_it_is(seconds: float) -> None:
    lead = silence(6) if seconds == 24 else silence(0)
    (block,) = blocks_of(lead, voice(max(seconds, 1)), silence(0))
    assert len(block.samples) == len(lead) + SAMPLE_RATE * max(seconds, 1)


@pytest.mark.parametrize(("seconds", "noise"), [(0.5, 0.02), (30, 0), (95, 0), (95, 1e-5), (35, 0.02)])
def test_without_speech_nothing_is_to_be_heard(seconds: float, noise: float) -> None:
    hiss = np.random.default_rng(1).standard_normal(int(seconds * SAMPLE_RATE)) * noise
    assert not any(len(block.samples) for block in blocks_of(hiss.astype(np.float32)))


def test_a_long_audio_is_cut_in_its_pauses() -> None:
    sentence = (VOICE[: 8 * SAMPLE_RATE], silence(1))
    blocks = blocks_of(*sentence * 6)
    for block in blocks[:-1]:
        assert 8 <= block.end % 9 <= 9, block
    assert 2 <= len(blocks) <= 3


def test_blocks_without_speech_are_not_heard() -> None:
    blocks = blocks_of(silence(40), VOICE[: 4 * SAMPLE_RATE], silence(8), VOICE[: 4 * SAMPLE_RATE], silence(40))
    assert [len(block.samples) > 0 for block in blocks] == [False, True, False, False]


def test_speech_without_pauses_is_cut_where_it_is_quiet() -> None:
    blocks = blocks_of(VOICE, VOICE)
    for block in blocks:
        assert len(block.samples) > 4 * SAMPLE_RATE
    for block in blocks[:-1]:
        assert np.abs(block.samples[-64:]).max() < 0.1


@pytest.mark.parametrize("scale", [1.5, 32768, 1e30])
def test_samples_that_are_too_loud_become_softer(scale: float) -> None:
    """Whisper takes louder ones for no speech."""
    (block,) = cut([VOICE * np.float32(scale)])
    expected = VOICE / max(np.quantile(np.abs(VOICE), 0.999), 1 / scale)
    assert np.allclose(block.samples, np.clip(expected, -1, 1), atol=1e-6)
    assert block.samples.dtype == np.float32


def test_a_click_softens_nothing_else() -> None:
    clicked = VOICE.copy()
    clicked[99] = 1e30
    (block,) = cut([clicked])
    assert block.samples[99] == 1
    assert np.array_equal(block.samples[100:], VOICE[100:])


def test_blocks_do_not_depend_on_the_pieces() -> None:
    samples = np.concatenate([VOICE, silence(3), VOICE])
    expected = [(block.end, len(block.samples)) for block in cut([samples])]
    pieces = np.split(samples, np.arange(777, len(samples), 54_321))
    assert [(block.end, len(block.samples)) for block in cut(pieces)] == expected


def test_memory_does_not_depend_on_the_length() -> None:
    """No block is held once the next is asked for, and no more is read than a block and a piece."""
    read = 0

    def pieces() -> Any:
        nonlocal read
        for _ in range(60):
            read += 10
            yield silence(10)

    for block in cut(pieces()):
        assert read <= block.end + 30 + 10
