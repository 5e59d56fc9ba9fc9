"""`inflight transcribe` against a real Triton whose model says what it was sent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.client.support.encoder_server import EncoderServer
from tests.fixtures.command_runner import CommandResult, CommandRunner
from tests.fixtures.voice import encoded, voice

Run = Callable[..., CommandResult]


@pytest.fixture
def run(runner_of: Callable[[str], CommandRunner], scripted_encoders: EncoderServer) -> Run:
    address = ("--server", scripted_encoders.grpc_address)
    return lambda *arguments, stdin=b"": runner_of("transcribe")(*map(str, arguments), *address, stdin=stdin)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    spoken = voice(2)
    paths = tmp_path / "a.wav", tmp_path / "b.flac"
    paths[0].write_bytes(encoded(spoken))
    paths[1].write_bytes(encoded(spoken[:16_000], kind="FLAC"))
    return paths


def test_each_file_is_a_line(run: Run, files: tuple[Path, Path]) -> None:
    done = run(*files, "--language", "en", "--priority", 2)
    assert done.code == 0
    assert [line.split(",")[0] for line in done.out.splitlines()] == [
        "<|en|><|transcribe|><|notimestamps|> 32000 samples",
        "<|en|><|transcribe|><|notimestamps|> 16000 samples",
    ]
    assert done.out.count("priority 2") == 2
    assert done.err.startswith("[2 files, 0:00:03 of audio in ")


def test_standard_input_is_a_file(run: Run, files: tuple[Path, Path]) -> None:
    done = run("-", "--format", "srt", "--to-english", stdin=files[1].read_bytes())
    assert done.out.startswith("1\n00:00:00,000 --> 00:00:00,500\n<|translate|>\n\n2\n")


def test_json_has_what_verbose_json_has(run: Run, files: tuple[Path, Path]) -> None:
    done = run(*files, "--json", "--word-timestamps")
    assert [(each["file"], each["duration"]) for each in done.objects] == [(str(files[0]), 2), (str(files[1]), 1)]
    assert [len(each["words"]) for each in done.objects] == [2, 2]


@pytest.mark.parametrize(("form", "suffix"), [("vtt", "vtt"), ("text", "txt"), ("verbose_json", "json")])
def test_each_file_has_its_transcript_in_a_directory(
    form: str, suffix: str, run: Run, files: tuple[Path, Path], tmp_path: Path
) -> None:
    done = run(*files, "--format", form, "--out", tmp_path / "said")
    assert (done.code, done.out) == (0, "")
    assert sorted(path.name for path in (tmp_path / "said").iterdir()) == [f"a.{suffix}", f"b.{suffix}"]
    assert "32000 samples" in (tmp_path / "said" / f"a.{suffix}").read_text()


def test_a_file_that_fails_leaves_the_others(run: Run, files: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "notes.wav").write_text("no sound")
    done = run(files[0], tmp_path / "notes.wav", files[1])
    assert (done.code, len(done.out.split())) == (1, 8)
    assert "notes.wav" in done.err
    assert "[audio_unsupported]" in done.err


def test_a_transcript_never_replaces_the_audio(run: Run, files: tuple[Path, Path]) -> None:
    audio = files[0].rename(files[0].with_suffix(".txt"))
    content = audio.read_bytes()
    assert run(audio, "--out", audio.parent).code == 2
    assert audio.read_bytes() == content


@pytest.mark.parametrize(
    "arguments",
    [
        *[("--format", "srt"), ("--json", "--format", "vtt"), ("--json", "--out", "said"), ("a.mp3", "--out", "x")],
        ("--word-timestamps",),
    ],
)
def test_outputs_that_exclude_each_other_are_refused(
    arguments: tuple[str, ...], run: Run, files: tuple[Path, Path]
) -> None:
    assert run(*files, *arguments).code == 2
