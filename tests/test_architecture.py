"""ARCHITECTURE.md names files that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PATH = re.compile(r"`([\w./-]+\.(?:py|pbtxt|md))`")


TEXT = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
PATHS = sorted({path for path in PATH.findall(TEXT) if "/" in path})


@pytest.mark.parametrize("path", PATHS)
def test_a_file_that_the_architecture_names_is_there(path: str) -> None:
    assert (ROOT / path).is_file()


def test_the_architecture_names_files_and_each_path_has_numbered_steps() -> None:
    sections = re.split(r"^### ", TEXT, flags=re.MULTILINE)[1:]
    assert PATHS
    assert sections
    for section in sections:
        numbers = [int(number) for number in re.findall(r"^(\d+)\. ", section, re.MULTILINE)]
        assert numbers, section
        assert numbers == list(range(1, len(numbers) + 1)), section
