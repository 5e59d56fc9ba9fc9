"""A stand-in for a weak network: a TCP proxy on loopback, in this process, that damages connections as `Faults` say."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tests.standins.faulty_network.toxics import CutAt, DelayedBytes, DirectionFilter, Step, Toxic

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with no time: closing sends RST and drops what was not yet sent."""


@dataclass(frozen=True)
class Faults:
    """What happens to a connection: `up` on the way to the server, `down` on the way back."""

    up: tuple[Toxic, ...] = ()
    down: tuple[Toxic, ...] = ()


@dataclass(eq=False)
class _Direction:
    """One direction of a connection."""

    source: socket.socket
    sink: socket.socket
    line: DirectionFilter
    silent: bool = False
    """Whether the source's end must not be passed to the sink: it was stalled, or has received an end already."""


class _Connection:
    def __init__(self, client: socket.socket, server: socket.socket, faults: Faults, seed: int) -> None:
        self.ends = (client, server)
        self.directions = (
            _Direction(client, server, DirectionFilter(faults.up, seed)),
            _Direction(server, client, DirectionFilter(faults.down, seed + 500)),
        )
        self.over = asyncio.Event()

    def cut(self, how: str) -> None:
        if how == "rst":
            for end in self.ends:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.over.set()


class FaultyNetwork:
    """A context manager: inside it `address` leads to `target` (HOST:PORT), over a network with faults.

    The n-th connection gets the n-th of `faults`, those behind the last one get the last. What is to happen to later
    connections, or to those that are open, can be changed at any time and from any thread. It has one thread, and two
    sockets a connection; all are gone when `close` returns.
    """

    def __init__(self, target: str, *faults: Faults, seed: int = 0) -> None:
        self.target = target
        """Where the next connection leads."""
        self._plan: Sequence[Faults] = faults or (Faults(),)
        self._seed = seed
        self._open: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0
        self._listener: socket.socket | None = socket.create_server(("127.0.0.1", 0))
        self._port = self._listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="weak-network", daemon=True)

    def __enter__(self) -> FaultyNetwork:
        self._thread.start()
        self._call(self._listen)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def set(self, *faults: Faults) -> None:
        """From now on the next connection gets the first of these, and so on."""

        def change() -> None:
            self._plan, self.connections = faults, 0

        self._call(change)

    def disturb(self, faults: Faults) -> None:
        """Treat the open connections so, with offsets from where each of them is; further ones as before."""

        def change() -> None:
            for connection in self._open:
                for way, toxics in zip(connection.directions, (faults.up, faults.down), strict=True):
                    way.line = DirectionFilter(toxics, self._seed)
                    for step in way.line.feed(b""):
                        self._interrupt(connection, way, step)

        self._call(change)

    def refuse(self) -> None:
        """Stop listening; open connections go on."""
        self._call(self._close_listener)

    def listen(self) -> None:
        """Listen again, on the same port."""

        def change() -> None:
            self._listener = socket.create_server(("127.0.0.1", self._port))
            self._listen()

        self._call(change)

    def close(self) -> None:
        async def end() -> None:
            self._close_listener()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, function: Callable[[], None]) -> None:
        """Run it in the loop's thread, and wait for it."""

        async def run() -> None:
            function()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def _listen(self) -> None:
        assert self._listener is not None
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener, self._accept)

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            client, _ = self._listener.accept()
        except OSError:
            return  # the client has gone again
        faults = self._plan[min(self.connections, len(self._plan) - 1)]
        seed = self._seed * 1000 + self.connections
        self.connections += 1
        self._spawn(self._carry(client, faults, seed))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, client: socket.socket, faults: Faults, seed: int) -> None:
        """Run a connection: both ways until each has ended, or something has cut both."""
        host, _, port = self.target.rpartition(":")
        with client, socket.socket() as server:
            connection = _Connection(client, server, faults, seed)
            for end in connection.ends:
                end.setblocking(False)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open.add(connection)
            work: list[asyncio.Future[Any]] = [self._loop.create_task(connection.over.wait())]
            try:
                await self._loop.sock_connect(server, (host, int(port)))
                work.append(asyncio.gather(*(self._run(connection, way) for way in connection.directions)))
                await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            except OSError:
                connection.cut("rst")  # there is no server behind
            finally:
                self._open.discard(connection)
                for task in work:
                    task.cancel()
                await asyncio.gather(*work, return_exceptions=True)

    async def _run(self, connection: _Connection, way: _Direction) -> None:
        steps = way.line.feed(b"")
        try:
            while True:
                for step in steps:
                    if isinstance(step, DelayedBytes):
                        await asyncio.sleep(step.pause)
                        await self._loop.sock_sendall(way.sink, step.data)
                    else:
                        self._interrupt(connection, way, step)
                data = await self._loop.sock_recv(way.source, 65536)
                if not data:
                    break
                steps = way.line.feed(data)
            if not way.silent:
                way.sink.shutdown(socket.SHUT_WR)
        except OSError:
            connection.cut("rst")  # one end has broken the connection, so the other one gets a reset too

    @staticmethod
    def _interrupt(connection: _Connection, way: _Direction, step: Step) -> None:
        """What comes behind a stall or a cut of one way is read on and thrown away: so its end is noticed."""
        way.silent = True
        if isinstance(step, CutAt) and step.how == "half":
            with suppress(OSError):
                way.sink.shutdown(socket.SHUT_WR)
        elif isinstance(step, CutAt):
            connection.cut(step.how)
