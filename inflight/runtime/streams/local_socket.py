"""Messages between the models of one server, which processes of other user accounts can neither send nor read.

Abstract Unix sockets need no directory that all models can write to, and leave no files behind. But they have no
permissions, and their names are public. So both ends of a connection ask the kernel for the other process's user.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct

_MAX_MESSAGE_BYTES = 2**18
_MAX_MESSAGES_PER_READ = 64
"""Messages that are read from one connection before the next one's turn."""
_SEND_TIMEOUT_SECONDS = 1
_CREDENTIALS = struct.Struct("3i")


class SocketListener:
    """Accepts connections from processes of this user at an abstract name. Raises OSError if the name is taken."""

    def __init__(self, name: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(f"\0{name}")
        self._socket.listen()
        self._socket.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)

    def receive(self) -> list[bytes]:
        """Wait, and return the received messages, if any, in order per connection."""
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
        """Make `receive` return, now and in every later call."""
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
            return  # woken, or the other end has disconnected again
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
    """Connect to the listener of that name. Raises OSError if no process of this user listens there.

    Sending blocks for a second at most, then raises BlockingIOError.
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
    """Return an identifier that the models of one server share, and processes of other users can't guess.

    It is the number that `inflight serve` sets, else the server's process id and the address of its stack, which the
    kernel shows to processes of the same user only.
    """
    if number := os.environ.get("INFLIGHT_SERVER_ID"):
        return number
    server = os.getppid()
    try:
        with open(f"/proc/{server}/stat", encoding="utf-8", errors="replace") as file:
            return f"{server}-{file.read().rpartition(')')[2].split()[25]}"
    except (OSError, IndexError):
        return str(server)


def _is_same_user(connection: socket.socket) -> bool:
    """Return whether the other end's process has this user; the kernel recorded it at its `connect` or `listen`."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(raw)
    return bool(user == os.geteuid())
