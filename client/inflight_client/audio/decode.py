"""Decodes wav, flac, ogg and mp3 piece by piece, so that memory does not depend on a file's length."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from inflight_client.errors import InflightError
from inflight_client.validation import invalid_value, shorten

if TYPE_CHECKING:
    import numpy
    import numpy.typing

    Samples = numpy.typing.NDArray[numpy.float32]
    Audio = str | Path | bytes | BinaryIO | Samples
else:
    Audio = Any

SAMPLE_RATE = 16_000
MAX_SECONDS = 7200.0
"""The longest audio, unless the caller says otherwise."""

_MAX_CHANNELS = 8
_RATES = (1_000, 384_000)
_VALUES_PER_SECOND = 2 * 48_000
"""Of the longest audio: so many values are decoded at most, whatever the rate and the channels are."""
_PIECE_VALUES = 2**20
_READ_SECONDS = 10
_FORMATS = ("WAV", "WAVEX", "FLAC", "OGG", "MP3")
_KNOWN_BY = (b"RIFF", b"fLaC", b"OggS", b"ID3")
_NAMES = (
    (0, b"\x1aE\xdf\xa3", "WebM or Matroska"),
    (4, b"ftyp", "MP4 or M4A"),
    (0, b"0&\xb2u\x8ef\xcf\x11", "WMA"),
    (0, b"FORM", "AIFF"),
    (0, b"caff", "CAF"),
    (0, b".snd", "AU"),
    (0, b"#!AMR", "AMR"),
    (0, b"RF64", "RF64"),
    (0, b"ADIF", "AAC"),
)
"""Formats that are not decoded, by bytes at a place of their beginning."""


def duration(audio: Audio) -> float | None:
    """Return the seconds of an audio as its header says them; None if it does not. Raises InflightError."""
    with _opened(audio) as file:
        if not hasattr(file, "samplerate"):
            return len(file) / SAMPLE_RATE
        seconds = float(file.frames / file.samplerate)
        return seconds if 0 < seconds < 2**31 else None


def read_audio(audio: Audio, max_seconds: float = MAX_SECONDS) -> Iterator[Samples]:
    """Yield the samples, mono float32 at SAMPLE_RATE, in pieces of about 10 s.

    `audio` is a path, the bytes of a file, an open file of the system, or an array of samples. Raises InflightError:
    `audio_unsupported`, `audio_damaged`, `audio_too_long`, `invalid_parameter`, `package_missing`.
    """
    with _opened(audio) as file:
        pieces = _decoded(file, max_seconds) if hasattr(file, "samplerate") else _split(file, max_seconds)
        empty = True
        for piece in pieces:
            if not _numpy().isfinite(piece).all():
                raise InflightError("the audio has samples that are not finite numbers; send others", "audio_damaged")
            empty = empty and not len(piece)
            yield piece
        if empty:
            raise InflightError("the audio has no samples; send a recording", "audio_damaged")


def _numpy() -> Any:
    import numpy

    return numpy


def _libraries() -> tuple[Any, Any]:
    try:
        import soundfile
        import soxr
    except (ImportError, OSError) as error:
        raise InflightError(
            f"audio files need soundfile and soxr ({error}); run `pip install 'inflight[audio]'`", "package_missing"
        ) from None
    return soundfile, soxr


@contextmanager
def _opened(audio: Any) -> Iterator[Any]:
    """Yield a SoundFile, or the array."""
    numpy = _numpy()
    if isinstance(audio, numpy.ndarray):
        if audio.ndim != 1 or audio.dtype.kind != "f":
            what = f"an array {audio.dtype} {list(audio.shape)}"
            raise InflightError(
                f"the audio is {what}; it must be float32 [samples], mono at {SAMPLE_RATE} Hz", "invalid_parameter"
            )
        with numpy.errstate(over="ignore"):
            samples = audio.astype(numpy.float32, copy=False)
        yield samples
        return
    soundfile, _ = _libraries()
    with ExitStack() as stack:
        source = _source(audio, stack)
        _check_format(os.pread(source, 16, 0) if isinstance(source, int) else source.getvalue()[:16])
        try:
            # soundfile closes a descriptor, also when it fails.
            file = stack.enter_context(soundfile.SoundFile(os.dup(source) if isinstance(source, int) else source))
        except (soundfile.SoundFileError, RuntimeError, ValueError, OSError) as error:
            raise _damaged(error) from None
        if file.format not in _FORMATS:
            raise _unsupported(file.format_info)
        yield file


def _source(audio: Any, stack: ExitStack) -> int | io.BytesIO:
    """Return what soundfile opens. It never sees a name, by whose end it would choose a format."""
    if isinstance(audio, bytes | bytearray):
        return io.BytesIO(audio)
    if isinstance(audio, str | Path):
        try:
            descriptor = os.open(audio, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InflightError(
                f"the audio {shorten(str(audio))} can't be read: {reason}; pass the path of a file", "invalid_parameter"
            ) from None
        stack.callback(os.close, descriptor)
    else:
        try:
            descriptor = audio.fileno()
        except (AttributeError, OSError, ValueError):
            raise invalid_value(
                "the audio", type(audio), "a path, the bytes of a file, an open file, or an array"
            ) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise InflightError(f"the audio {shorten(str(audio))} is no file; pass the path of one", "invalid_parameter")
    os.lseek(descriptor, 0, os.SEEK_SET)
    return int(descriptor)


def _check_format(head: bytes) -> None:
    if not head:
        raise InflightError("the audio is empty; send a recording", "audio_damaged")
    for place, mark, name in _NAMES:
        if head[place:].startswith(mark):
            raise _unsupported(name)
    is_mp3 = len(head) > 1 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0 and head[1] & 0x06  # AAC's layer is 0
    if not (head.startswith(_KNOWN_BY) or is_mp3):
        raise _unsupported("of an unknown format")


def _unsupported(name: str) -> InflightError:
    return InflightError(
        f"the audio is {name}; convert it to wav, flac, ogg or mp3, for instance with `ffmpeg -i FILE FILE.flac`",
        "audio_unsupported",
    )


def _damaged(error: Exception, seconds: float | None = None) -> InflightError:
    reason = " ".join(str(error).rpartition(": ")[2].split()).rstrip(".")[:100] or type(error).__name__
    where = "" if seconds is None else f" after {seconds:.1f} s"
    return InflightError(f"the audio can't be decoded{where} ({reason}); send another file", "audio_damaged")


def _too_long(max_seconds: float, seconds: float | None = None) -> InflightError:
    what = "more" if seconds is None else f"{seconds:.0f}"
    return InflightError(
        f"the audio has {what} seconds, and at most {max_seconds:g} are allowed; send it in parts", "audio_too_long"
    )


def _split(samples: Samples, max_seconds: float) -> Iterator[Samples]:
    if len(samples) > max_seconds * SAMPLE_RATE:
        raise _too_long(max_seconds, len(samples) / SAMPLE_RATE)
    step = _READ_SECONDS * SAMPLE_RATE
    for start in range(0, len(samples), step):
        yield samples[start : start + step]


def _decoded(file: Any, max_seconds: float) -> Iterator[Samples]:
    soundfile, soxr = _libraries()
    numpy = _numpy()
    rate, channels = file.samplerate, file.channels
    if not (1 <= channels <= _MAX_CHANNELS and _RATES[0] <= rate <= _RATES[1]):
        raise InflightError(
            f"the audio has {channels} channels at {rate} Hz; send at most {_MAX_CHANNELS} at {_RATES[0]} to"
            f" {_RATES[1]} Hz",
            "audio_unsupported",
        )
    most = int(min(max_seconds * rate, max_seconds * _VALUES_PER_SECOND // channels))
    step = min(_READ_SECONDS * rate, _PIECE_VALUES // channels)
    resampler = None if rate == SAMPLE_RATE else soxr.ResampleStream(rate, SAMPLE_RATE, 1, "float32", "HQ")
    count = 0
    if most < file.frames < 2**62:
        raise _too_long(most / rate, file.frames / rate)
    while True:
        try:
            with numpy.errstate(all="ignore"):
                piece = file.read(step, "float32", always_2d=True).mean(axis=1)
        except (soundfile.SoundFileError, RuntimeError, ValueError) as error:
            raise _damaged(error, count / rate) from None
        count += len(piece)
        if count > most:
            raise _too_long(most / rate)
        ended = len(piece) < step
        if resampler is not None:
            piece = resampler.resample_chunk(piece, last=ended)
        if len(piece):
            yield piece
        if ended:
            return
