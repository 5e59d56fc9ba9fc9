"""ARCHITECTURE.md names files that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PATH = re.compile(r"`([\w./-]+\.(?:py|pbtxt|md))`")


def paths() -> list[str]:
    return sorted(set(PATH.findall((ROOT / "ARCHITECTURE.md").read_text("utf-8"))))


@pytest.mark.parametrize("path", [path for path in paths() if "/" in path])
def test_a_file_that_the_architecture_names_is_there(path: str) -> None:
    assert (ROOT / path).is_file()


def test_each_of_the_seven_paths_has_numbered_steps() -> None:
    sections = re.split(r"^### ", (ROOT / "ARCHITECTURE.md").read_text("utf-8"), flags=re.MULTILINE)[1:]
    assert len(sections) == 7
    assert all(len(re.findall(r"^\d\. ", section, re.MULTILINE)) >= 5 for section in sections)
