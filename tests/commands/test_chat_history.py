"""What was typed comes back, and only to who typed it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from inflight.commands.chat_history import ChatHistory, state_file


def test_messages_come_back_with_all_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "inflight" / "chat_history"
    first = ChatHistory(path)
    assert first.load() == []
    first.add("one\ntwo")
    first.add("お茶")
    assert ChatHistory(path).load() == ["one\ntwo", "お茶"]


def test_nobody_else_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "inflight" / "chat_history"
    path.parent.mkdir()
    path.write_text("an older line\n")
    path.chmod(0o644)
    history = ChatHistory(path)
    assert history.load() == ["an older line"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_only_the_last_thousand_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "chat_history"
    path.write_text("".join(f'"{number}"\n' for number in range(1500)))
    assert ChatHistory(path).load()[0] == "500"
    assert len(path.read_text().splitlines()) == 1000


def test_a_place_that_can_not_be_written_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    history = ChatHistory(tmp_path / "file" / "chat_history")
    assert history.load() == []
    history.add("tea")
    assert capsys.readouterr().err.count("No history is kept") == 1


def test_the_state_folder_is_xdgs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/states")
    assert state_file() == Path("/states/inflight/chat_history")
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_STATE_HOME", value)
        assert state_file() == Path.home() / ".local/state/inflight/chat_history"
