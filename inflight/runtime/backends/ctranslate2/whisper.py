"""Transcribes clips with a Whisper model in CTranslate2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ctranslate2
import numpy as np

from inflight.runtime.speech.clip import (
    DETECTED,
    SAMPLE_RATE,
    SAMPLES_PER_POSITION,
    Clip,
    Decoded,
    Decoding,
    WhisperSettings,
)
from inflight.runtime.speech.log_mel import HOP, LogMel

_SAMPLES = 5
"""Samples at a temperature above 0, of which the most probable one counts, as in OpenAI's code."""


class Whisper:
    """Computes one batch at a time. Raises ValueError or RuntimeError for a directory that can't be loaded."""

    def __init__(self, settings: WhisperSettings) -> None:
        self._model = ctranslate2.models.Whisper(
            settings.engine_dir, compute_type=settings.compute_type, intra_threads=settings.threads
        )
        self._log_mel = LogMel(settings.mels)
        self._tokens = settings.tokens

    def run(self, clips: Sequence[Clip]) -> list[Decoded]:
        """Return what was said in each clip. The clips are of one group."""
        decoding = clips[0].decoding
        features = ctranslate2.StorageView.from_array(self._log_mel([clip.samples for clip in clips]))
        encoded = self._model.encode(features)
        prompts = self._prompts(clips, encoded)
        results = self._model.generate(
            encoded, prompts, return_scores=True, return_no_speech_prob=True, **_sampling(decoding)
        )
        decoded = [_decoded(result, decoding) for result in results]
        states = np.array(encoded) if decoding.words else None
        for row, clip in enumerate(clips):
            if DETECTED in clip.prompt:
                language = prompts[row][clip.prompt.index(DETECTED)]
                decoded[row] = replace(decoded[row], language=language)
            if states is not None:
                decoded[row] = self._with_times(decoded[row], states[row : row + 1], prompts[row], clip)
        return decoded

    def _prompts(self, clips: Sequence[Clip], encoded: Any) -> list[list[int]]:
        """Return the clips' prompts, with the languages that were detected.

        CTranslate2 detects none for a vocabulary smaller than Whisper's: there the first language counts.
        """
        known = self._tokens.languages
        if DETECTED not in clips[0].prompt:
            return [list(clip.prompt) for clip in clips]
        tokens = [next(iter(known.values()))] * len(clips)
        if self._model.is_multilingual:
            tokens = [known[languages[0][0][2:-2]] for languages in self._model.detect_language(encoded)]
        return [
            [token if each == DETECTED else each for each in clip.prompt]
            for clip, token in zip(clips, tokens, strict=True)
        ]

    def _with_times(self, decoded: Decoded, state: Any, prompt: Sequence[int], clip: Clip) -> Decoded:
        """Add the time of each token of text: where the decoder attends to while it writes the token. `state` is what
        the encoder made of the clip, [1, positions, size]."""
        text = [token for token in decoded.tokens if token < self._tokens.end]
        if not text:
            return decoded
        start = [token for token in prompt[prompt.index(self._tokens.start) :] if token != self._tokens.no_timestamps]
        own = ctranslate2.StorageView.from_array(state)
        frames = max(2, len(clip.samples) // HOP)
        alignment = self._model.align(own, start, [text], frames)[0]
        times: dict[int, int] = {}
        for token, position in alignment.alignments:
            times.setdefault(token, position)
        seconds = SAMPLES_PER_POSITION / SAMPLE_RATE
        starts = [times[index] * seconds for index in range(len(text) + 1)]
        return replace(decoded, times=tuple(starts), probabilities=tuple(alignment.text_token_probs))


def _sampling(decoding: Decoding) -> dict[str, Any]:
    if not decoding.temperature:
        return {"beam_size": decoding.beam_width}
    return {
        "beam_size": 1,
        "num_hypotheses": _SAMPLES,
        "sampling_topk": 0,
        "sampling_temperature": decoding.temperature,
    }


def _decoded(result: Any, decoding: Decoding) -> Decoded:
    tokens = tuple(result.sequences_ids[0])
    total = result.scores[0] * len(tokens)
    return Decoded(tokens, total / (len(tokens) + 1), result.no_speech_prob, decoding.temperature)
