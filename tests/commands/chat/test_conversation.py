"""What a conversation remembers, forgets, and keeps in files."""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from inflight_client import InflightError

from inflight.commands.chat.conversation import MAX_FILE_BYTES, Conversation, read_messages
from tests.fixtures.errors import raises


def conversation(*said: str, system: str = "") -> Conversation:
    """One in which each text was answered by itself in capitals."""
    made = Conversation(system)
    for text in said:
        made.add_exchange(text, text.upper())
    return made


def contents(conversation: Conversation) -> list[Any]:
    return [message["content"] for message in conversation.messages]


def test_a_message_is_kept_once_it_is_answered() -> None:
    talk = Conversation("be brief")
    assert [message["role"] for message in talk.with_question("tea?")] == ["system", "user"]
    assert contents(talk) == ["be brief"]
    talk.add_exchange("tea?", "yes")
    assert talk.messages[1:] == [{"role": "user", "content": "tea?"}, {"role": "assistant", "content": "yes"}]


@pytest.mark.parametrize("system", ["", "be brief"])
def test_what_is_forgotten(system: str) -> None:
    kept = [system] if system else []
    talk = conversation("a", "b", "c", system=system)
    assert talk.undo()
    assert contents(talk) == [*kept, "a", "A", "b", "B"]
    assert talk.drop()
    assert contents(talk) == [*kept, "b", "B"]
    assert talk.drop()
    assert contents(talk) == kept
    assert not talk.undo()
    assert not talk.drop()
    talk = conversation("a", "b", system=system)
    talk.reset()
    assert contents(talk) == kept


def test_the_systems_message_is_set_changed_and_taken_away() -> None:
    talk = conversation("a")
    for text in ("be brief", "be long", ""):
        talk.system = text
        assert talk.system == text
        assert contents(talk) == [*([text] if text else []), "a", "A"]


def test_a_file_gives_back_what_was_saved(tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    conversation("お茶?", system="be brief").save(path)
    loaded = Conversation("forget me")
    loaded.load(path)
    assert contents(loaded) == ["be brief", "お茶?", "お茶?"]
    conversation("b").save(path)
    loaded.load(path)
    assert contents(loaded) == ["b", "B"]


def test_no_file_is_lost_that_is_no_conversation(tmp_path: Path) -> None:
    path = tmp_path / "thesis.txt"
    path.write_text("years of work")
    with raises(InflightError, "invalid_messages", naming="thesis.txt"):
        conversation("a").save(path)
    assert path.read_text() == "years of work"


@pytest.mark.parametrize("raw", [b"", b"{", b'{"role": "user"}', b'["tea"]', b'[{"content": "tea"}]', b"\xff"])
def test_what_holds_no_messages_is_refused_by_name(raw: bytes) -> None:
    with raises(InflightError, "invalid_messages", naming="standard input"):
        read_messages(io.BytesIO(raw), "standard input")


def test_no_more_is_read_than_a_conversation_may_have() -> None:
    with Path("/dev/zero").open("rb") as endless, raises(InflightError, "invalid_messages", naming="16 MiB"):
        read_messages(endless, "standard input")
    with raises(InflightError, "invalid_messages", naming="standard input"):
        read_messages(io.BytesIO(b" " * MAX_FILE_BYTES), "standard input")


def test_neither_pipes_nor_devices_nor_folders_are_read_or_written(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/full"), Path("/dev/zero"), tmp_path):
        for act in (conversation("a").save, Conversation().load):
            with raises(InflightError, "invalid_messages", naming=str(path)):
                act(path)


def test_a_new_file_is_its_owners_and_an_older_one_stays_as_it_was_shared(tmp_path: Path) -> None:
    path, link = tmp_path / "talk.json", tmp_path / "link.json"
    conversation("a").save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    link.symlink_to(path)
    conversation("b").save(link)
    assert link.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    loaded = Conversation()
    loaded.load(path)
    assert contents(loaded) == ["b", "B"]


def test_what_can_not_be_written_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    conversation("a").save(path)
    before = path.read_bytes()
    with pytest.raises(UnicodeEncodeError):
        conversation("\udcff").save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
