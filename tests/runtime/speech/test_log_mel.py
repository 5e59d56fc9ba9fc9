"""The spectrogram is that of transformers."""

from __future__ import annotations

import numpy as np
import pytest
from transformers import WhisperFeatureExtractor

from inflight.runtime.speech.clip import MAX_SAMPLES
from inflight.runtime.speech.log_mel import LogMel

LENGTHS = (1, 159, 201, 16000, 100_001, MAX_SAMPLES - 100, MAX_SAMPLES)


@pytest.mark.parametrize("mels", [80, 128])
def test_the_values_are_those_of_transformers(mels: int) -> None:
    random = np.random.default_rng(7)
    clips = [random.normal(0, 0.1, length).astype(np.float32) for length in LENGTHS]
    clips.append(np.zeros(8000, np.float32))
    expected = WhisperFeatureExtractor(feature_size=mels)(clips, sampling_rate=16000, return_tensors="np")
    np.testing.assert_allclose(LogMel(mels)(clips), expected["input_features"], atol=2e-5)
