"""What an engine of speech computes: clips in, tokens out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from inflight.common.request_error import RequestError

SAMPLE_RATE = 16000
MAX_SECONDS = 30
MAX_SAMPLES = MAX_SECONDS * SAMPLE_RATE


@dataclass(frozen=True, eq=False)
class Clip:
    """Audio of at most 30 s: `samples` is a float32 array [samples], 16,000 a second. The decoder continues `prompt`,
    token ids that end with `<|startoftranscript|>` and what follows it."""

    samples: Any = field(repr=False)
    prompt: tuple[int, ...]

    def check(self) -> None:
        """Raise RequestError: `audio_too_long`, and `audio_damaged` for no samples or ones that are not finite."""
        count = len(self.samples)
        if count > MAX_SAMPLES:
            raise RequestError(
                f"the clip has {count / SAMPLE_RATE:.1f} seconds; send at most {MAX_SECONDS}, and cut longer audio",
                "audio_too_long",
            )
        if not count:
            raise RequestError("the clip has no samples; send at least one", "audio_damaged")
        if not np.isfinite(self.samples).all():
            raise RequestError("the clip has samples that are not finite numbers; send others", "audio_damaged")


@dataclass(frozen=True)
class Decoding:
    """How clips are decoded: what all clips of a batch share, besides the length of their prompts.

    Beam search at `temperature` 0; otherwise the best of several samples.
    """

    beam_width: int = 1
    temperature: float = 0.0
    length_penalty: float = 1.0


@dataclass(frozen=True)
class Decoded:
    """The tokens of a clip without its prompt and end, their mean log probability (the end's included), and the
    probability that the clip has no speech."""

    tokens: tuple[int, ...]
    log_probability: float
    no_speech_probability: float


@dataclass(frozen=True)
class WhisperSettings:
    """An engine's directory, its manifest's `compute_type`, and the threads that compute; 0 for one on each core."""

    engine_dir: str
    compute_type: str
    mels: int
    threads: int = 0
