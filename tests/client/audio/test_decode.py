"""Audio files as samples: formats, rates and channels, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inflight_client import InflightError
from inflight_client.audio import MAX_SECONDS, SAMPLE_RATE, duration
from inflight_client.audio.decode import read_audio

from tests.client.support.leak_checks import open_files
from tests.fixtures.errors import raises
from tests.fixtures.voice import encoded, silence, voice

VOICE = voice(2)


def samples_of(audio: Any, max_seconds: float = MAX_SECONDS) -> Any:
    return np.concatenate(list(read_audio(audio, max_seconds)))


@pytest.mark.parametrize(
    ("kind", "subtype", "error"),
    [
        ("WAV", "PCM_16", 2e-4),
        ("WAV", "PCM_U8", 0.01),
        ("WAV", "PCM_24", 1e-6),
        ("WAV", "FLOAT", 0),
        ("FLAC", "PCM_16", 2e-4),
        ("OGG", "VORBIS", 0.2),
        ("OGG", "OPUS", 0.2),
        ("MP3", None, 0.2),
    ],
)
def test_formats_are_decoded(kind: str, subtype: str | None, error: float) -> None:
    audio = encoded(VOICE, kind=kind, subtype=subtype)
    found = samples_of(audio)
    assert found.dtype == np.float32
    assert duration(audio) == pytest.approx(2, abs=0.1)
    # MP3 and Opus may begin a little earlier or later.
    shift = np.argmax(np.correlate(found[:24_000], VOICE[4_000:16_000], "valid")) - 4_000
    ours = VOICE[4_000:16_000]
    assert np.abs(found[4_000 + shift : 16_000 + shift] - ours).max() <= error + 1e-7
    assert abs(shift) < 2_000


@pytest.mark.parametrize("rate", [8_000, 22_050, 44_100, 384_000])
@pytest.mark.parametrize("channels", [1, 2, 8])
def test_rates_and_channels_become_mono_at_16_khz(rate: int, channels: int) -> None:
    tone = np.sin(np.arange(rate) * 2 * np.pi * 440 / rate)
    stereo = np.stack([tone * (place + 1) for place in range(channels)], axis=1) / channels / 2
    found = samples_of(encoded(stereo, rate, subtype="FLOAT"))
    expected = np.sin(np.arange(SAMPLE_RATE) * 2 * np.pi * 440 / SAMPLE_RATE) * (channels + 1) / channels / 4
    assert len(found) == pytest.approx(SAMPLE_RATE, abs=2)
    assert np.abs(found[800:15_200] - expected[800:15_200]).max() < 1e-3


def test_sources_are_the_same_samples(tmp_path: Path) -> None:
    path = tmp_path / "voice.raw"  # the name says nothing
    path.write_bytes(encoded(VOICE, subtype="FLOAT"))
    with path.open("rb") as file:
        file.read(10)
        for audio in (path, str(path), path.read_bytes(), file, VOICE, VOICE.astype(np.float64)):
            assert np.array_equal(samples_of(audio), VOICE)
        assert file.tell() in (0, 10) or not file.closed


REFUSED = {
    "nothing": (b"", "audio_damaged"),
    "no samples": (encoded(VOICE[:0]), "audio_damaged"),
    "text": (b"tea and coffee, " * 99, "audio_unsupported"),
    "mp4": (b"\0\0\0\x20ftypM4A " + bytes(99), "audio_unsupported"),
    "webm": (b"\x1aE\xdf\xa3" + bytes(99), "audio_unsupported"),
    "aiff": (encoded(VOICE, kind="AIFF"), "audio_unsupported"),
    "aac": (b"\xff\xf1\x50\x80" + bytes(99), "audio_unsupported"),
    "header alone": (b"RIFF\xff\xff\xff\xffWAVE", "audio_damaged"),
    "flac cut": (encoded(VOICE, kind="FLAC")[:30], "audio_damaged"),
    "9 channels": (encoded(np.zeros((99, 9))), "audio_unsupported"),
    "999 Hz": (encoded(VOICE, 999), "audio_unsupported"),
    "1 MHz": (encoded(VOICE, 1_000_000), "audio_unsupported"),
    "NaN": (encoded(np.array([0.1, np.nan] * 99), subtype="FLOAT"), "audio_damaged"),
    "infinite": (encoded(np.array([0.1, np.inf] * 99), subtype="FLOAT"), "audio_damaged"),
    "too large": (encoded(np.full((9, 2), 3e38), subtype="FLOAT"), "audio_damaged"),
    "int array": (np.zeros(9, np.int16), "invalid_parameter"),
    "2 dimensions": (np.zeros((2, 9), np.float32), "invalid_parameter"),
    "None": (None, "invalid_parameter"),
    "missing": ("/no/such/file.wav", "invalid_parameter"),
    "NUL": ("\0", "invalid_parameter"),
    "directory": ("/", "invalid_parameter"),
    "device": ("/dev/zero", "invalid_parameter"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_audio_is_refused(name: str, tmp_path: Path) -> None:
    audio, code = REFUSED[name]
    with raises(InflightError, code):
        samples_of(audio)
    if isinstance(audio, bytes):
        (tmp_path / "audio").write_bytes(audio)
        with raises(InflightError, code):
            samples_of(tmp_path / "audio")
        assert not open_files(tmp_path)


def without_length(mp3: bytes) -> bytes:
    """The same without its first frame, which has the length: as a recorder writes it into a pipe."""
    return mp3[mp3.index(mp3[:2], 2) :]


def fading(seconds: int) -> Any:
    """Loud, then quiet: the bit rate of the first frames is not that of the whole."""
    noise = np.random.default_rng(0).normal(0, 0.2, seconds * SAMPLE_RATE // 2)
    return np.concatenate([noise, silence(seconds / 2)]).astype(np.float32)


MP3, OGG = (encoded(VOICE, kind=kind) for kind in ("MP3", "OGG"))
NOISE = np.random.default_rng(1).bytes(900)
WHOLE = {
    "joined MP3": (MP3 * 3, 6),
    "MP3 with tags between": (MP3 + b"TAG" + bytes(125) + b"ID3\4\0\0\0\0\0\x0a" + bytes(10) + MP3, 4),
    "joined OGG": (OGG * 3, 6),
    "MP3 without a length": (without_length(encoded(fading(6), kind="MP3")), 6),
    "WAV of a pipe": (encoded(VOICE)[:40] + b"\xff" * 4 + encoded(VOICE)[44:], 2),
    "WAV that was not closed": (b"RIFF\x24\0\0\0" + encoded(VOICE)[8:40] + bytes(4) + encoded(VOICE)[44:], 2),
}


@pytest.mark.parametrize("name", WHOLE)
def test_nothing_after_the_stated_end_is_lost(name: str, tmp_path: Path) -> None:
    audio, seconds = WHOLE[name]
    (tmp_path / "audio").write_bytes(audio)
    for source in (audio, tmp_path / "audio"):
        assert len(samples_of(source)) / SAMPLE_RATE == pytest.approx(seconds, abs=0.3)


@pytest.mark.parametrize(
    "audio",
    [
        MP3[: len(MP3) // 2],
        MP3[: len(MP3) // 3] + MP3[2 * len(MP3) // 3 :],
        OGG[: len(OGG) // 3] + NOISE * 9 + OGG[len(OGG) // 3 + 8_100 :],
        encoded(VOICE)[:32_000],
        encoded(VOICE, kind="FLAC")[:-5_000],
    ],
    ids=["MP3 cut", "MP3 with a gap", "OGG with noise", "WAV cut", "FLAC cut"],
)
def test_audio_with_less_than_its_header_says_is_refused(audio: bytes) -> None:
    with raises(InflightError, "audio_damaged"):
        samples_of(audio)


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "OGG"])
def test_audio_over_the_limit_is_refused(kind: str) -> None:
    audio = encoded(silence(12), kind=kind)
    assert len(samples_of(audio, 12)) == 12 * SAMPLE_RATE
    with raises(InflightError, "audio_too_long"):
        samples_of(audio, 11.9)
    with raises(InflightError, "audio_too_long"):
        samples_of(silence(12), 11.9)


def test_a_length_that_the_header_does_not_tell_ends_at_the_limit() -> None:
    audio = bytearray(encoded(silence(60), kind="FLAC"))
    audio[21] &= 0xF0  # the samples of the stream: unknown
    audio[22:26] = bytes(4)
    pieces = read_audio(bytes(audio), 25)
    assert sum(len(next(pieces)) for _ in range(2)) == 20 * SAMPLE_RATE
    with raises(InflightError, "audio_too_long"):
        list(pieces)


def test_many_channels_at_a_high_rate_count_as_more(tmp_path: Path) -> None:
    """So that a small file of silence can't take minutes to decode."""
    audio = encoded(np.zeros((384_000 * 4, 8), np.float32), 384_000, "FLAC")
    assert len(samples_of(audio, 130)) == 4 * SAMPLE_RATE
    with raises(InflightError, "audio_too_long"):
        samples_of(audio, 120)
