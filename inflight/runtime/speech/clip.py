"""What an engine of speech computes: clips in, tokens out."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from inflight.common.request_error import RequestError

SAMPLE_RATE = 16000
MAX_SECONDS = 30
MAX_SAMPLES = MAX_SECONDS * SAMPLE_RATE
SAMPLES_PER_POSITION = 320
"""Samples of a position of the encoder, and of a step of timestamps: 20 ms."""
MAX_POSITIONS = MAX_SAMPLES // SAMPLES_PER_POSITION
DETECTED = -1
"""In a prompt, the place of the language's token, which the engine finds out."""


@dataclass(frozen=True)
class SpecialTokens:
    """Token ids that have a meaning; those of timestamps follow `no_timestamps`. `languages` are the tokens by code;
    none if the model is for English only."""

    end: int
    start: int
    previous: int
    transcribe: int
    translate: int
    no_timestamps: int
    languages: Mapping[str, int] = field(default_factory=dict)

    @property
    def first_timestamp(self) -> int:
        return self.no_timestamps + 1


@dataclass(frozen=True)
class Decoding:
    """How clips are decoded: what all clips of a batch share, besides the length of their prompts.

    Beam search at `temperature` 0; otherwise the best of several samples. `words` asks for the time of each token.
    """

    beam_width: int = 1
    temperature: float = 0.0
    words: bool = False


@dataclass(frozen=True)
class Decoded:
    """The tokens of a clip without its prompt and end, their mean log probability (the end's included), and the
    probability that the clip has no speech.

    `language` is the token of the language that was detected. Of the tokens that are text, `times` are the seconds at
    which each begins and the last one ends, and `probabilities` how probable each is; both only if words were asked
    for.
    """

    tokens: tuple[int, ...]
    log_probability: float
    no_speech_probability: float
    temperature: float = 0.0
    language: int | None = None
    times: tuple[float, ...] = ()
    probabilities: tuple[float, ...] = ()


@dataclass(frozen=True, eq=False)
class Clip:
    """Audio of at most 30 s: `samples` is a float32 array [samples], 16,000 a second. The decoder continues `prompt`,
    token ids that end with `<|startoftranscript|>` and what follows it.

    A poor result is computed again at the next of `further` temperatures; `tried` are the results so far. What is left
    of a clip begins at `start` seconds, and follows the segments `earlier`.
    """

    samples: Any = field(repr=False)
    prompt: tuple[int, ...]
    decoding: Decoding = Decoding()
    further: tuple[float, ...] = ()
    tried: tuple[Decoded, ...] = ()
    start: float = 0.0
    earlier: tuple[Mapping[str, Any], ...] = ()

    @property
    def seconds(self) -> float:
        return len(self.samples) / SAMPLE_RATE

    @property
    def size(self) -> int:
        """The positions of the encoder that are audio."""
        return -(-len(self.samples) // SAMPLES_PER_POSITION)

    @property
    def group(self) -> Hashable:
        """CTranslate2 wants prompts of one length, and decodes either all clips of a batch with timestamps or none."""
        return self.decoding, len(self.prompt), self.prompt[-1], DETECTED in self.prompt

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
class WhisperSettings:
    """An engine's directory, its manifest's `compute_type`, and the threads that compute; 0 for one on each core."""

    engine_dir: str
    compute_type: str
    mels: int
    tokens: SpecialTokens
    threads: int = 0
