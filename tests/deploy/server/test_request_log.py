from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from inflight.deploy.errors import DeployError
from inflight.deploy.server.preflight import request_log_environment
from inflight.runtime.triton.request_log import PATH_VARIABLE
from tests.fixtures.errors import raises
from tests.fixtures.manifests import manifest


@pytest.mark.parametrize("target", ["openvino", "llmapi"])
def test_the_engine_is_told_where_its_lines_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    monkeypatch.chdir(tmp_path)
    made = manifest().model_copy(update={"target": target})
    Path("requests.jsonl").write_text("before\n")
    assert request_log_environment(Path("requests.jsonl"), made) == {PATH_VARIABLE: str(tmp_path / "requests.jsonl")}
    assert Path("requests.jsonl").read_text() == "before\n"
    assert request_log_environment(None, made) == {}


def test_the_file_is_the_user_s_own_and_the_group_s(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        request_log_environment(tmp_path / "log", manifest())
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o640


def test_what_can_not_be_written_is_refused(tmp_path: Path) -> None:
    with raises(DeployError, "invalid_parameter", naming=("--request-log", "nowhere/log")):
        request_log_environment(tmp_path / "nowhere" / "log", manifest())


def test_the_c_plus_plus_backend_writes_none(tmp_path: Path) -> None:
    made = manifest().model_copy(update={"target": "tensorrt-llm"})
    with raises(DeployError, "invalid_parameter", naming="C++"):
        request_log_environment(tmp_path / "log", made)
    assert not (tmp_path / "log").exists()
