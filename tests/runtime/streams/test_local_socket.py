"""Models of one account reach each other, and processes of other accounts can pretend to be none of them."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from inflight.runtime.streams.local_socket import SocketListener, connect, server_id

OTHER = 65534
"""A user that is not this one; becoming it takes root."""
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="another account can be taken by root alone")


@pytest.fixture
def name() -> str:
    return f"test-{secrets.token_hex(8)}"


@contextmanager
def stranger(program: str, *arguments: str) -> Iterator[str]:
    """A process of another account, which prints a line once it has done what it is to do, and then waits.

    It becomes that account once it runs: this interpreter may lie where only its owner may enter.
    """
    become = f"import os, socket, sys\nos.setgroups([])\nos.setgid({OTHER})\nos.setuid({OTHER})"
    code = f"{become}\n{textwrap.dedent(program)}\nprint(flush=True)\nsys.stdin.read()"
    command = [sys.executable, "-I", "-S", "-c", code, *arguments]
    with subprocess.Popen(command, cwd="/", text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.stdin.close()


def test_messages_come_in_order_and_apart(name: str) -> None:
    listener = SocketListener(name)
    with connect(name) as one, connect(name) as other:
        for message in (b"a", b"b" * 60_000):
            one.send(message)
            other.send(message)
        found: list[bytes] = []
        while len(found) < 4:
            found += listener.receive()
    assert sorted(found) == [b"a", b"a", b"b" * 60_000, b"b" * 60_000]
    assert found.index(b"a") < found.index(b"b" * 60_000)
    listener.close()


def test_who_is_not_of_this_account_is_turned_away_on_both_sides(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = SocketListener(name)
    monkeypatch.setattr(os, "geteuid", lambda: OTHER)  # to each side the other one is a stranger
    with pytest.raises(PermissionError):
        connect(name)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.connect(f"\0{name}")
        stranger.settimeout(30)
        assert [listener.receive() for _ in range(2)] == [[], []]  # one connection each time
        assert stranger.recv(1) == b""
    listener.close()


@as_root
def test_another_account_sends_nothing(name: str) -> None:
    listener = SocketListener(name)
    program = """
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.connect("\\0" + sys.argv[1])
    one.send(b"of a stranger")
    """
    with stranger(program, name), connect(name) as ours:
        ours.send(b"ours")
        found: list[bytes] = []
        while not found:
            found = listener.receive()
    assert found == [b"ours"]
    listener.close()


@as_root
def test_another_account_gets_nothing(name: str) -> None:
    program = """
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.bind("\\0" + sys.argv[1])
    one.listen()
    """
    with stranger(program, name), pytest.raises(PermissionError):
        connect(name)


@as_root
def test_another_account_can_not_guess_a_servers_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INFLIGHT_SERVER_ID", raising=False)
    server, secret = server_id().split("-")
    assert (int(server), int(secret) > 2**20) == (os.getppid(), True)
    program = "print(open(f'/proc/{sys.argv[1]}/stat').read().rpartition(')')[2].split()[25], end='')"
    with stranger(program, server) as seen:
        assert seen == "0"
