"""The spectrogram that Whisper hears, as transformers computes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from inflight.runtime.speech.clip import MAX_SAMPLES, SAMPLE_RATE

_WINDOW = 400
HOP = 160
_FRAMES = MAX_SAMPLES // HOP
_FLOOR = 1e-10
_RANGE = 8.0
"""Orders of magnitude below the loudest value under which all values count as equal."""
_LINEAR_HZ = 1000.0
_HZ_PER_MEL = 200 / 3
_MELS_PER_LOG = 27 / np.log(6.4)


class LogMel:
    """Computes spectrograms with so many bands."""

    def __init__(self, mels: int) -> None:
        self._filters = _filters(mels)
        self._window = np.hanning(_WINDOW + 1)[:-1]

    def __call__(self, clips: Sequence[Any]) -> Any:
        """Return float32 [clips, mels, 3000] for clips of at most 30 s, each followed by silence."""
        rows = np.empty((len(clips), len(self._filters), _FRAMES), np.float32)
        for row, samples in zip(rows, clips, strict=True):
            self._compute(samples, row)
        return rows

    def _compute(self, samples: Any, row: Any) -> None:
        half = _WINDOW // 2
        silent = np.zeros(MAX_SAMPLES)
        silent[: len(samples)] = samples
        padded = np.pad(silent, half, mode="reflect")
        # Frames behind the last sample are silent, and need no transform.
        frames = min(_FRAMES, (len(samples) + half) // HOP + 1)
        windows = np.lib.stride_tricks.sliding_window_view(padded, _WINDOW)[: frames * HOP : HOP]
        power = np.abs(np.fft.rfft(windows * self._window)) ** 2
        values = np.log10(np.maximum(self._filters @ power.T, _FLOOR))
        row[:, :frames] = values
        row[:, frames:] = np.log10(_FLOOR)
        np.maximum(row, row.max() - _RANGE, out=row)
        row += 4.0
        row /= 4.0


def _filters(mels: int) -> Any:
    """Return triangles over the frequencies of a transform [mels, frequencies], each of the same area (Slaney's)."""
    frequencies = np.linspace(0, SAMPLE_RATE / 2, _WINDOW // 2 + 1)
    corners = _hertz(np.linspace(0, _mel(SAMPLE_RATE / 2), mels + 2))
    left, centre, right = corners[:-2, None], corners[1:-1, None], corners[2:, None]
    triangles = np.minimum((frequencies - left) / (centre - left), (right - frequencies) / (right - centre))
    return np.maximum(triangles, 0) * 2 / (right - left)


def _mel(hertz: float) -> float:
    return float(_LINEAR_HZ / _HZ_PER_MEL + np.log(hertz / _LINEAR_HZ) * _MELS_PER_LOG)


def _hertz(mels: Any) -> Any:
    linear_mels = _LINEAR_HZ / _HZ_PER_MEL
    above = _LINEAR_HZ * np.exp((mels - linear_mels) / _MELS_PER_LOG)
    return np.where(mels < linear_mels, mels * _HZ_PER_MEL, above)
