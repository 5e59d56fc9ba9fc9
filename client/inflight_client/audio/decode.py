"""Decodes wav, flac, ogg and mp3 piece by piece, so that memory does not depend on a file's length."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
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
    (0, b"\xff\xf1", "AAC"),
    (0, b"\xff\xf9", "AAC"),
    (0, b"riff", "W64"),
    (8, b"AVI ", "AVI"),
    (8, b"WEBP", "WebP"),
)
"""Formats that are not decoded, by bytes at a place of their beginning."""
_BEGINNINGS = {"MP3": rb"ID3|\xff[\xe2\xe3\xea\xeb\xf2\xf3\xfa\xfb]", "OGG": rb"OggS\0\x02"}
"""Of a further stream in the same file."""
_NEAR_BYTES = 2**16
"""How far from the end of a stream the next one begins. More that can't be decoded is no tag, such as a picture."""
_MAX_STREAMS = 1000
_MISSING_SECONDS = 0.25
"""By how much a file may be shorter than its header says; encoders differ by less."""
_UNKNOWN_BYTES = 0x7FFF_0000
"""Programs that write into a pipe say so much, or more, as the length of a WAV file."""


def duration(audio: Audio) -> float | None:
    """Return the seconds of an audio as its header says them; None if it does not. Raises InflightError."""
    with _opened(audio) as (source, file):
        return len(file) / SAMPLE_RATE if source is None else _stated_seconds(source, file)


def read_audio(audio: Audio, max_seconds: float = MAX_SECONDS) -> Iterator[Samples]:
    """Yield the samples, mono float32 at SAMPLE_RATE, in pieces of about 10 s.

    `audio` is a path, the bytes of a file, an open file of the system, or an array of samples. Raises InflightError:
    `audio_unsupported`, `audio_damaged`, `audio_too_long`, `invalid_parameter`, `package_missing`.
    """
    with _opened(audio) as (source, file):
        pieces = _split(file, max_seconds) if source is None else _decoded(source, file, max_seconds)
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


class _Source:
    """The bytes of a file from `start` on, as soundfile reads them. It never sees a name, by whose end it would choose
    a format."""

    def __init__(self, data: bytes | int, size: int, start: int = 0) -> None:
        """`data` is a file's content or its descriptor."""
        self.data, self.size, self.start, self.position = data, size, start, start
        self.decoded = start
        """The end of what was read; soundfile may go back in the file."""
        self.is_unclosed = False
        """Whether soundfile is to read a size of 8 in the header of a WAV file, by which it knows unclosed ones."""

    def at(self, place: int, count: int) -> bytes:
        place = max(0, place)
        found = os.pread(self.data, count, place) if isinstance(self.data, int) else self.data[place : place + count]
        return (found[:4] + b"\x08\0\0\0" + found[8:])[: len(found)] if self.is_unclosed and not place else found

    def readinto(self, buffer: Any) -> int:
        piece = self.at(self.position, len(buffer))
        buffer[: len(piece)] = piece
        self.position += len(piece)
        self.decoded = max(self.decoded, self.position)
        return len(piece)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self.position = offset + (self.start, self.position, self.size)[whence]
        return self.tell()

    def tell(self) -> int:
        return self.position - self.start


@contextmanager
def _opened(audio: Any) -> Iterator[tuple[_Source, Any] | tuple[None, Any]]:
    """Yield a source and its SoundFile, or None and the array."""
    numpy = _numpy()
    if isinstance(audio, numpy.ndarray):
        if audio.ndim != 1 or audio.dtype.kind != "f":
            what = f"an array {audio.dtype} {list(audio.shape)}"
            raise InflightError(
                f"the audio is {what}; it must be float32 [samples], mono at {SAMPLE_RATE} Hz", "invalid_parameter"
            )
        with numpy.errstate(over="ignore"):
            samples = audio.astype(numpy.float32, copy=False)
        yield None, samples
        return
    with ExitStack() as stack:
        source = _source(audio, stack)
        _check_format(source.at(0, 16))
        with _sound_file(source) as file:
            yield source, file


def _sound_file(source: _Source) -> Any:
    soundfile, _ = _libraries()
    try:
        file = soundfile.SoundFile(source)
    except (soundfile.SoundFileError, RuntimeError, ValueError, OSError) as error:
        raise _damaged(error) from None
    if file.format not in _FORMATS:
        raise _unsupported(file.format_info)
    source.decoded = source.start  # tags at the end are read first
    # A recorder that died has written no length.
    if not (file.frames or source.is_unclosed) and file.format.startswith("WAV"):
        source.position, source.is_unclosed = 0, True
        return _sound_file(source)
    return file


def _source(audio: Any, stack: ExitStack) -> _Source:
    if isinstance(audio, bytes | bytearray):
        return _Source(bytes(audio), len(audio))
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
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise InflightError(f"the audio {shorten(str(audio))} is no file; pass the path of one", "invalid_parameter")
    return _Source(descriptor, found.st_size)


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


def _damaged(error: Exception, where: str = "") -> InflightError:
    reason = " ".join(str(error).rpartition(": ")[2].split()).rstrip(".")[:100] or type(error).__name__
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


def _decoded(source: _Source, file: Any, max_seconds: float) -> Iterator[Samples]:
    """Yield the samples of all streams that a file has, one after the other.

    An MP3 file whose bit rate varies and whose header has no length comes as several too: the library estimates where
    such a file ends. Raises InflightError (`audio_damaged`) at the end of a file that has less than its header says.
    """
    stated = _stated_seconds(source, file)
    if stated is not None and stated > (most := _most_frames(file, max_seconds) / file.samplerate):
        raise _too_long(most, stated)
    seconds, rest = 0.0, file
    for _ in range(_MAX_STREAMS):
        frames = yield from _stream(rest, max_seconds, seconds)
        seconds += frames / rest.samplerate
        source, rest = _rest(source, rest.format, seconds) if frames else (source, None)
        if rest is None:
            break
    else:
        raise _incomplete(seconds, None)
    if stated is not None and stated - seconds > _MISSING_SECONDS:
        raise _incomplete(seconds, stated)


def _rest(source: _Source, kind: str, seconds: float) -> tuple[_Source, Any]:
    """Return what follows a stream of so many seconds, and its SoundFile or None. Raises InflightError."""
    begin = max(source.start + 1, source.decoded - (_NEAR_BYTES if kind == "OGG" else 0))
    found = re.search(_BEGINNINGS[kind], source.at(begin, 2 * _NEAR_BYTES)) if kind in _BEGINNINGS else None
    if found is not None:
        rest = _Source(source.data, source.size, begin + found.start())
        with suppress(InflightError):
            return rest, _sound_file(rest)
    if kind == "MP3" and source.size - source.decoded > _NEAR_BYTES:  # more than tags
        raise _incomplete(seconds, None)
    return source, None


def _stream(file: Any, max_seconds: float, begun: float) -> Generator[Samples, None, int]:
    """Yield the samples of one stream, after so many seconds of others; return the number of its own frames."""
    soundfile, soxr = _libraries()
    numpy = _numpy()
    rate, channels = file.samplerate, file.channels
    if not (1 <= channels <= _MAX_CHANNELS and _RATES[0] <= rate <= _RATES[1]):
        raise InflightError(
            f"the audio has {channels} channels at {rate} Hz; send at most {_MAX_CHANNELS} at {_RATES[0]} to"
            f" {_RATES[1]} Hz",
            "audio_unsupported",
        )
    most = _most_frames(file, max_seconds) - begun * rate
    step = min(_READ_SECONDS * rate, _PIECE_VALUES // channels)
    resampler = None if rate == SAMPLE_RATE else soxr.ResampleStream(rate, SAMPLE_RATE, 1, "float32", "HQ")
    count, ended = 0, False
    while not ended:
        try:
            with numpy.errstate(all="ignore"):
                piece = file.read(step, "float32", always_2d=True).mean(axis=1)
        except (soundfile.SoundFileError, RuntimeError, ValueError) as error:
            place = begun + count / rate
            raise _damaged(error, f" between {place:.0f} and {place + step / rate:.0f} s") from None
        count += len(piece)
        if count > most:
            raise _too_long(begun + most / rate)
        ended = len(piece) < step
        if resampler is not None:
            piece = resampler.resample_chunk(piece, last=ended)
        if len(piece):
            yield piece
    return count


def _most_frames(file: Any, max_seconds: float) -> int:
    return int(min(max_seconds * file.samplerate, max_seconds * _VALUES_PER_SECOND // file.channels))


def _stated_seconds(source: _Source, file: Any) -> float | None:
    """Return the length that a header states, also of a file that was cut; None where there is none."""
    frames = file.frames
    if file.format == "MP3":
        start = source.at(0, 10)
        tag = 10 + sum((byte & 127) << 7 * (9 - place) for place, byte in enumerate(start) if place > 5)
        first = source.at(tag if start.startswith(b"ID3") and len(start) == 10 else 0, _NEAR_BYTES // 16)
        if b"Xing" not in first and b"Info" not in first:
            return None
    elif cut := re.search(r"data : (\d+) \(should be (\d+)\)", file.extra_info):
        stated, real = map(int, cut.groups())
        if real < stated < _UNKNOWN_BYTES:
            frames = frames * stated // max(1, real)
    seconds = float(frames / file.samplerate)
    return seconds if 0 < seconds < 2**31 else None


def _incomplete(seconds: float, stated: float | None) -> InflightError:
    of = "" if stated is None else f", and its header says {stated:.1f} s"
    return InflightError(
        f"only {seconds:.1f} s of the audio can be decoded{of}; send the whole file, or convert what there is, for"
        " instance with `ffmpeg -i FILE FILE.flac`",
        "audio_damaged",
    )
