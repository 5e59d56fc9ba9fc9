"""Engines of CTranslate2: each a child process, and what makes results of the tokens that it returns."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from inflight.runtime.backends.ctranslate2.process import EngineProcess
from inflight.runtime.encoders.manifest import Seq2SeqDescription
from inflight.runtime.speech.clip import MAX_POSITIONS, SAMPLE_RATE, Clip, WhisperSettings
from inflight.runtime.speech.prefix import special_tokens
from inflight.runtime.speech.transcript import TranscriptMaker
from inflight.text.tokenizer import load_tokenizer


class SpeechEngine:
    """Transcribes clips."""

    packed = False
    noun = "clip"

    def __init__(self, settings: WhisperSettings, transcripts: TranscriptMaker, report: Callable[[str], None]) -> None:
        self._process = EngineProcess(settings, report)
        self._transcripts = transcripts

    @property
    def pid(self) -> int | None:
        """The id of the process that computes; None after it has died, until the next batch."""
        return self._process.pid

    def padded_length(self, tokens: int) -> int:
        """Return the positions of 30 s: a clip is computed with silence behind it."""
        return MAX_POSITIONS

    def run(self, inputs: Sequence[Clip]) -> Sequence[Any]:
        decoded = self._process.run(inputs)
        return [self._transcripts.make(clip, each) for clip, each in zip(inputs, decoded, strict=True)]

    def close(self) -> None:
        """End the engine's process."""
        self._process.close()


def load_engines(
    engine_dir: str, manifest: Seq2SeqDescription, threads: int, requests: int, report: Callable[[str], None]
) -> list[SpeechEngine]:
    """Start `requests` engines, which share `threads` threads, 0 for one on each core, and try each with a second of
    silence. Raises RuntimeError and ValueError."""
    tokenizer = load_tokenizer(engine_dir)
    tokens = special_tokens(tokenizer, manifest.languages)
    share = max(1, (threads or len(os.sched_getaffinity(0))) // requests)
    settings = WhisperSettings(engine_dir, manifest.properties["compute_type"], manifest.mels, tokens, share)
    transcripts = TranscriptMaker(tokenizer, tokens)
    engines = [SpeechEngine(settings, transcripts, report) for _ in range(requests)]
    for engine in engines:
        engine.run([Clip(np.zeros(SAMPLE_RATE, np.float32), (tokens.start, tokens.no_timestamps))])
    return engines
