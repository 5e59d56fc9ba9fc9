"""Translates or summarizes texts with CTranslate2."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import ctranslate2

from inflight.runtime.encoders.source_text import SourceText, Text2TextSettings


class Text2Text:
    """Computes one batch at a time. Raises ValueError or RuntimeError for a directory that can't be loaded."""

    def __init__(self, settings: Text2TextSettings) -> None:
        self._translator = ctranslate2.Translator(
            settings.engine_dir, compute_type=settings.compute_type, intra_threads=settings.threads
        )
        config = json.loads((Path(settings.engine_dir) / "config.json").read_text("utf-8"))
        # mBART's first models have no start token: a prefix begins the answer in its place, and is not returned.
        self._starts = config.get("decoder_start_token", "") is None
        self._end = config.get("eos_token", "</s>")

    def run(self, texts: Sequence[SourceText]) -> list[tuple[tuple[str, ...], bool]]:
        """Return the tokens of each answer, without its prefix, and whether it ended by itself. The texts are of one
        group; a batch shrinks as their answers end."""
        results = self._translator.translate_batch(
            [list(text.tokens) for text in texts],
            [list(text.prefix) for text in texts] if texts[0].prefix else None,
            max_input_length=0,
            max_batch_size=0,
            return_end_token=True,
            **{"min_decoding_length": 0, **dict(texts[0].decoding)},  # the library's own is 1: no empty answer
        )
        return [self._answer(text, result.hypotheses[0]) for text, result in zip(texts, results, strict=True)]

    def _answer(self, text: SourceText, tokens: list[str]) -> tuple[tuple[str, ...], bool]:
        ended = tokens[-1:] == [self._end]
        return tuple(tokens[max(0, len(text.prefix) - self._starts) : len(tokens) - ended]), ended
