"""What docs/docker.md says of files, sizes and options."""

from __future__ import annotations

import re

from tests.docker.serve_options import variables
from tests.fixtures.engines import ROOT

PAGE = (ROOT / "docs" / "docker.md").read_text(encoding="utf-8")


def test_the_files_that_it_names_exist() -> None:
    named = set(re.findall(r"\bdocker/[\w./-]+\w", PAGE))
    assert named
    for path in named:
        assert (ROOT / path).exists(), path


def test_the_least_shared_memory_is_the_scripts() -> None:
    script = (ROOT / "docker" / "entrypoint.sh").read_text(encoding="utf-8")
    least = re.search(r"^least_shared_memory_mib=(\d+)$", script, re.MULTILINE)
    assert least
    assert f"{least[1]} MiB at least" in PAGE


def test_the_options_that_it_names_are_those_of_serve() -> None:
    assert set(re.findall(r"INFLIGHT_SERVE_[A-Z_]+", PAGE)) <= variables()
