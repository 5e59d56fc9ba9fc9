"""Clips in batches, in a child process, with the real weights of Whisper tiny.en."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from build_engines.manifest import Seq2SeqManifest
from inflight.common.request_error import RequestError
from inflight.runtime.backends.ctranslate2.process import EngineProcess
from inflight.runtime.speech.clip import MAX_SAMPLES, Clip, Decoding, SpecialTokens, WhisperSettings
from inflight.runtime.speech.prefix import special_tokens
from inflight.text.tokenizer import load_tokenizer
from tests.fixtures.errors import raises

GREEDY = Decoding()
BEAMS = Decoding(beam_width=2)


@pytest.fixture(scope="module")
def engine(whisper_engine: Path) -> Iterator[EngineProcess]:
    manifest = Seq2SeqManifest.read(whisper_engine)
    tokens = special_tokens(load_tokenizer(str(whisper_engine)), manifest.languages)
    assert manifest.mels is not None
    process = EngineProcess(
        WhisperSettings(str(whisper_engine), manifest.properties["compute_type"], manifest.mels, tokens)
    )
    yield process
    process.close()
    assert process.pid is None


@pytest.fixture(scope="module")
def prompt(whisper_engine: Path) -> tuple[int, ...]:
    tokenizer = load_tokenizer(str(whisper_engine))
    return tuple(tokenizer.token_to_id(token) for token in ("<|startoftranscript|>", "<|notimestamps|>"))


def clips(prompt: tuple[int, ...]) -> list[Clip]:
    """Tones, steps and noise of several lengths, which the model hears as different things."""
    random = np.random.default_rng(3)
    times = np.arange(MAX_SAMPLES, dtype=np.float32) / 16000
    sounds = [
        0.3 * np.sin(2 * np.pi * 440 * times[:8000]),
        random.normal(0, 0.1, 48000),
        0.5 * np.sign(np.sin(2 * np.pi * 3 * times[:160000])) * random.normal(0, 0.2, 160000),
        0.2 * np.sin(2 * np.pi * 200 * times * (1 + times / 10)),
    ]
    return [Clip(sound.astype(np.float32), prompt) for sound in sounds]


@pytest.mark.slow
@pytest.mark.parametrize("decoding", [GREEDY, BEAMS], ids=["greedy", "beams"])
def test_a_clip_has_the_same_tokens_in_any_batch(
    decoding: Decoding, engine: EngineProcess, prompt: tuple[int, ...]
) -> None:
    sounds = clips(prompt)
    alone = [engine.run([replace(clip, decoding=decoding)])[0] for clip in sounds]
    together = engine.run([replace(clip, decoding=decoding) for clip in sounds])
    assert [each.tokens for each in together] == [each.tokens for each in alone]
    assert len({each.tokens for each in alone}) > 1, "the clips are all alike, so that a mixed-up batch would pass"
    for one, other in zip(alone, together, strict=True):
        assert one.log_probability == pytest.approx(other.log_probability, abs=1e-3)
        assert 0 <= other.no_speech_probability <= 1


@pytest.mark.parametrize(
    ("samples", "code"),
    [
        (np.zeros(0, np.float32), "audio_damaged"),
        (np.full(16, np.nan, np.float32), "audio_damaged"),
        (np.array([np.inf, -np.inf], np.float32), "audio_damaged"),
        (np.zeros(MAX_SAMPLES + 1, np.float32), "audio_too_long"),
    ],
)
def test_a_clip_that_no_model_hears_is_refused(samples: object, code: str) -> None:
    with raises(RequestError, code):
        Clip(samples, (1,)).check()


def test_a_batch_that_the_library_refuses_fails_alone(engine: EngineProcess, prompt: tuple[int, ...]) -> None:
    sound, pid = clips(prompt)[0], engine.pid
    with pytest.raises(RuntimeError):
        engine.run([sound, Clip(sound.samples, (*prompt[:1], *prompt))])
    assert engine.run([sound])
    assert engine.pid == pid


def test_a_process_that_dies_fails_its_batch_and_is_replaced(engine: EngineProcess, prompt: tuple[int, ...]) -> None:
    sound = clips(prompt)[0]
    before = engine.run([sound])
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    with pytest.raises(RuntimeError):
        engine.run([sound])
    assert engine.run([sound]) == before


def test_an_engine_that_cannot_be_loaded_says_so_and_leaves_no_process(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=str(tmp_path)):
        EngineProcess(WhisperSettings(str(tmp_path), "float32", 80, SpecialTokens(0, 1, 2, 3, 4, 5)))
