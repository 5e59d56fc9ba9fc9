"""What was typed comes back, and only to who typed it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from inflight.commands.chat.history import MAX_FILE_BYTES, ChatHistory, state_file


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


@pytest.mark.parametrize(("written", "kept"), [(1500, 1500), (2500, 1000)])
def test_the_last_thousand_come_back_and_the_rest_goes_in_the_end(tmp_path: Path, written: int, kept: int) -> None:
    path = tmp_path / "chat_history"
    path.write_text("".join(f'"{number}"\n' for number in range(written)))
    assert ChatHistory(path).load() == [str(number) for number in range(written - 1000, written)]
    assert len(path.read_text().splitlines()) == kept
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_what_grew_too_large_loses_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "chat_history"
    path.write_text("".join(f'"{number} {"x" * MAX_FILE_BYTES}"\n' for number in range(2)) + '"tea"\n')
    assert ChatHistory(path).load() == ["tea"]
    assert path.stat().st_size < 10


def test_nothing_is_lost_where_nothing_more_can_be_written(tmp_path: Path) -> None:
    """A full disk, as a limit of the process has it."""
    path = tmp_path / "chat_history"
    path.write_text("".join(f'"{number}"\n' for number in range(3000)))
    size = path.stat().st_size
    program = (
        "import resource, signal, sys, pathlib\n"
        "from inflight.commands.chat.history import ChatHistory\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "history = ChatHistory(pathlib.Path(sys.argv[1]))\n"
        "history.load()\n"
        "history.add('tea')\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    assert done.stderr.count("Input history is off: ") == 1
    assert path.stat().st_size == size
    assert list(tmp_path.iterdir()) == [path]


def test_a_second_conversation_loses_nothing_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "chat_history"
    first, second = ChatHistory(path), ChatHistory(path)
    first.load()
    first.add("one")
    assert second.load() == ["one"]
    first.add("two")
    second.add("three")
    assert ChatHistory(path).load() == ["one", "two", "three"]


def test_a_pipe_in_its_place_is_told_and_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "chat_history"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert ChatHistory(path).load() == []
    finally:
        os.close(reader)
    assert ChatHistory(path).load() == []
    assert capsys.readouterr().err.count("Input history is off") == 2


def test_a_place_that_can_not_be_written_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    history = ChatHistory(tmp_path / "file" / "chat_history")
    assert history.load() == []
    history.add("tea")
    assert capsys.readouterr().err.count("Input history is off") == 1


def test_the_state_folder_is_xdgs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/states")
    assert state_file() == Path("/states/inflight/chat_history")
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_STATE_HOME", value)
        assert state_file() == Path.home() / ".local/state/inflight/chat_history"
