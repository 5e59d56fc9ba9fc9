"""Engines of CTranslate2: each a child process, and what makes results of the tokens that it returns."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from inflight.runtime.backends.ctranslate2.process import EngineProcess
from inflight.runtime.encoders.batch_planner import padded_length
from inflight.runtime.encoders.manifest import Seq2SeqDescription
from inflight.runtime.encoders.source_text import SourceText, Text2TextSettings, TextAnswer
from inflight.runtime.speech.clip import MAX_POSITIONS, SAMPLE_RATE, Clip, WhisperSettings
from inflight.runtime.speech.prefix import special_tokens
from inflight.runtime.speech.transcript import TranscriptMaker
from inflight.text.tokenizer import load_tokenizer

_TARGET_TOKENIZER = "target_tokenizer.json"
"""The tokenizer of answers, where that is not the one of texts."""


class SpeechEngine(EngineProcess):
    """Transcribes clips."""

    packed = False
    noun = "clip"

    def __init__(self, settings: WhisperSettings, transcripts: TranscriptMaker, report: Callable[[str], None]) -> None:
        super().__init__(settings, report)
        self._transcripts = transcripts

    def padded_length(self, tokens: int) -> int:
        """Return the positions of 30 s: a clip is computed with silence behind it."""
        return MAX_POSITIONS

    def run(self, inputs: Sequence[Clip]) -> list[Any]:
        return [self._transcripts.make(clip, each) for clip, each in zip(inputs, super().run(inputs), strict=True)]


class TextEngine(EngineProcess):
    """Makes texts from texts of at most `longest` tokens."""

    packed = False
    noun = "text"

    def __init__(
        self, settings: Text2TextSettings, tokenizer: Tokenizer, longest: int, report: Callable[[str], None]
    ) -> None:
        super().__init__(settings, report)
        self._decoder = tokenizer.decoder
        self._special = {each.content for each in tokenizer.get_added_tokens_decoder().values() if each.special}
        self._longest = longest

    def padded_length(self, tokens: int) -> int:
        return padded_length(tokens, self._longest)

    def run(self, inputs: Sequence[SourceText]) -> list[Any]:
        return [self._answer(*result) for result in super().run(inputs)]

    def _answer(self, tokens: Sequence[str], ended: bool) -> TextAnswer:
        shown = [token for token in tokens if token not in self._special]
        return TextAnswer(self._decoder.decode(shown), len(tokens), "stop" if ended else "length")


def load_engines(
    engine_dir: str, manifest: Seq2SeqDescription, threads: int, requests: int, report: Callable[[str], None]
) -> list[SpeechEngine] | list[TextEngine]:
    """Start up to `requests` engines, which share `threads` threads, 0 for one on each core, and try each.

    Raises RuntimeError and ValueError.
    """
    tokenizer = load_tokenizer(engine_dir)
    threads = threads or len(os.sched_getaffinity(0))
    requests = min(requests, threads)
    share = threads // requests
    compute_type = manifest.properties["compute_type"]
    if manifest.text is not None:
        of_text = Text2TextSettings(engine_dir, compute_type, share)
        if (Path(engine_dir) / _TARGET_TOKENIZER).is_file():
            tokenizer = Tokenizer.from_file(str(Path(engine_dir) / _TARGET_TOKENIZER))
        texts = [TextEngine(of_text, tokenizer, manifest.max_source_len, report) for _ in range(requests)]
        for engine in texts:
            engine.run([SourceText((*manifest.text.before, *manifest.text.after), (), (("max_decoding_length", 1),))])
        return texts
    tokens = special_tokens(tokenizer, manifest.languages)
    settings = WhisperSettings(engine_dir, compute_type, manifest.mels, tokens, share)
    transcripts = TranscriptMaker(tokenizer, tokens)
    speech = [SpeechEngine(settings, transcripts, report) for _ in range(requests)]
    for each in speech:
        each.run([Clip(np.zeros(SAMPLE_RATE, np.float32), (tokens.start, tokens.no_timestamps))])
    return speech
