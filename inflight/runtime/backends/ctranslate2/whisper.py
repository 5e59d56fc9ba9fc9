"""Transcribes clips with a Whisper model in CTranslate2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ctranslate2

from inflight.runtime.speech.clip import Clip, Decoded, Decoding, WhisperSettings
from inflight.runtime.speech.log_mel import LogMel

_SAMPLES = 5
"""Samples at a temperature above 0, of which the most probable one counts, as in OpenAI's code."""


class Whisper:
    """Computes one batch at a time. Raises ValueError or RuntimeError for a directory that can't be loaded."""

    def __init__(self, settings: WhisperSettings) -> None:
        self._model = ctranslate2.models.Whisper(
            settings.engine_dir, compute_type=settings.compute_type, intra_threads=settings.threads
        )
        self._log_mel = LogMel(settings.mels)

    def transcribe(self, clips: Sequence[Clip], decoding: Decoding) -> list[Decoded]:
        """Return what was said in each clip. The clips' prompts have the same length."""
        features = ctranslate2.StorageView.from_array(self._log_mel([clip.samples for clip in clips]))
        sampling: dict[str, Any] = {"beam_size": decoding.beam_width}
        if decoding.temperature > 0:
            sampling = {
                "beam_size": 1,
                "num_hypotheses": _SAMPLES,
                "sampling_topk": 0,
                "sampling_temperature": decoding.temperature,
            }
        results = self._model.generate(
            features,
            [list(clip.prompt) for clip in clips],
            length_penalty=decoding.length_penalty,
            return_scores=True,
            return_no_speech_prob=True,
            **sampling,
        )
        return [_decoded(result, decoding.length_penalty) for result in results]


def _decoded(result: Any, length_penalty: float) -> Decoded:
    tokens = tuple(result.sequences_ids[0])
    total = result.scores[0] * len(tokens) ** length_penalty
    return Decoded(tokens, total / (len(tokens) + 1), result.no_speech_prob)
