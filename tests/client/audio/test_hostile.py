"""Damaged audio files end with a sentence, take no more memory, and leave nothing open."""

from __future__ import annotations

from pathlib import Path

from inflight_client import InflightError
from inflight_client.audio.cut import cut
from inflight_client.audio.decode import duration, read_audio

from tests.client.support.leak_checks import open_files
from tests.fixtures.hostile_audio import hostile_files

CODES = {"audio_damaged", "audio_unsupported", "audio_too_long"}


def outcome_of(file: Path) -> str:
    """The code of the error with which a file is refused; empty for one that can be heard after all."""
    refusal = None
    try:
        duration(file)
        for block in cut(read_audio(file, 60)):
            assert len(block.samples) <= 480_000
    except InflightError as error:
        refusal = error
    if refusal is None:
        return ""
    assert str(refusal).isprintable()
    assert len(str(refusal)) < 300
    return refusal.code


def test_no_file_harms_what_decodes_it(tmp_path: Path) -> None:
    file, outcomes = tmp_path / "audio", []
    for kind, content in hostile_files(200):
        file.write_bytes(content)
        outcomes.append((kind, outcome_of(file)))
    assert {code for _, code in outcomes} == CODES | {""}
    assert {code for kind, code in outcomes if kind == "not finite"} == {"audio_damaged"}
    assert {code for kind, code in outcomes if kind == "bomb"} == {"audio_too_long"}
    assert not open_files(tmp_path)
