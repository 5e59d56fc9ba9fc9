"""Translates or summarizes texts with CTranslate2."""

from __future__ import annotations

from collections.abc import Sequence

import ctranslate2

from inflight.runtime.encoders.source_text import SourceText, Text2TextSettings


class Text2Text:
    """Computes one batch at a time. Raises ValueError or RuntimeError for a directory that can't be loaded."""

    def __init__(self, settings: Text2TextSettings) -> None:
        self._translator = ctranslate2.Translator(
            settings.engine_dir, compute_type=settings.compute_type, intra_threads=settings.threads
        )

    def run(self, texts: Sequence[SourceText]) -> list[tuple[str, ...]]:
        """Return the tokens of each answer, without its prefix. The texts are of one group; a batch shrinks as their
        answers end."""
        results = self._translator.translate_batch(
            [list(text.tokens) for text in texts],
            [list(text.prefix) for text in texts] if texts[0].prefix else None,
            max_input_length=0,
            max_batch_size=0,
            **dict(texts[0].decoding),
        )
        return [tuple(result.hypotheses[0][len(text.prefix) :]) for text, result in zip(texts, results, strict=True)]
