"""Messages between the models of one server, which processes of other accounts can neither send nor read.

Abstract Unix sockets need no directory that all models can write whichever user started the server, and leave nothing
behind. But they have no permissions, and everybody sees their names. So both ends of a connection ask the kernel whose
process the other one is.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct

_MAX_MESSAGE_BYTES = 2**18
_MAX_MESSAGES_PER_READ = 64
"""Messages that are read of one connection before it is the next one's turn."""
_SEND_TIMEOUT_SECONDS = 1
_CREDENTIALS = struct.Struct("3i")


class SocketListener:
    """Takes connections from processes of this account, by an abstract name; OSError where the name is taken."""

    def __init__(self, name: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(f"\0{name}")
        self._socket.listen()
        self._socket.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)

    def receive(self) -> list[bytes]:
        """Wait, and return the messages that have come, if any: in order, of each connection."""
        messages: list[bytes] = []
        for key, _ in self._selector.select():
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            if connection is self._socket:
                self._accept()
            else:
                messages += self._read(connection)
        return messages

    def wake(self) -> None:
        """Let `receive` return, now and from now on."""
        self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._selector.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except OSError:
            return  # woken, or the other one has gone again
        if _is_same_user(connection):
            connection.setblocking(False)
            self._selector.register(connection, selectors.EVENT_READ)
        else:
            connection.close()

    def _read(self, connection: socket.socket) -> list[bytes]:
        messages: list[bytes] = []
        try:
            while len(messages) < _MAX_MESSAGES_PER_READ:
                message = connection.recv(_MAX_MESSAGE_BYTES)
                if not message:
                    raise ConnectionResetError
                messages.append(message)
        except BlockingIOError:
            pass
        except OSError:
            self._selector.unregister(connection)
            connection.close()
        return messages


def connect(name: str) -> socket.socket:
    """A connection to the listener of that name; OSError if no process of this account listens.

    Sending by it takes a second at the most, then raises BlockingIOError.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_TIMEOUT_SECONDS, 0))
        connection.connect(f"\0{name}")
        if not _is_same_user(connection):
            raise PermissionError(f"{name} belongs to another account")
    except BaseException:
        connection.close()
        raise
    return connection


def server_id() -> str:
    """What the models of one server have in common, and processes of other accounts can't guess.

    It is the number that `inflight serve` gives, else the server's process id and the address of its stack, which the
    kernel shows to processes of the same account alone.
    """
    if given := os.environ.get("INFLIGHT_SERVER_ID"):
        return given
    server = os.getppid()
    try:
        with open(f"/proc/{server}/stat", encoding="utf-8", errors="replace") as file:
            return f"{server}-{file.read().rpartition(')')[2].split()[25]}"
    except (OSError, IndexError):
        return str(server)


def _is_same_user(connection: socket.socket) -> bool:
    """Whether the process at the other end has this one's user; the kernel noted it at its `connect` or `listen`."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(raw)
    return bool(user == os.geteuid())
