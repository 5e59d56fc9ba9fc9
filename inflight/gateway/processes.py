"""The processes of a gateway: they share a listening socket, and one that dies is started again.

The socket belongs to the parent, so connections wait during a restart instead of being refused.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from inflight_client import InflightError
from prometheus_client.multiprocess import mark_process_dead

import inflight.common.process_guard
from inflight.common.child_process import python_module
from inflight.gateway.key_file import read_key_file
from inflight.gateway.metrics import DIRECTORY_VARIABLE
from inflight.gateway.settings import SETTINGS_VARIABLE, GatewaySettings
from inflight.gateway.spans import FLUSH_SECONDS

_CHECK_SECONDS = 0.2
_MAX_PAUSE_SECONDS = 10.0
_STABLE_SECONDS = 30.0
_KILL_SECONDS = 5.0
_KEEP_ALIVE = {
    socket.TCP_KEEPIDLE: 60,
    socket.TCP_KEEPINTVL: 15,
    socket.TCP_KEEPCNT: 4,
    socket.TCP_USER_TIMEOUT: 90_000,
}
"""Seconds, and for the last one, until which sent bytes must be acknowledged or taken, milliseconds."""


class GatewayProcesses:
    """Starts, supervises and stops the workers of a gateway. `start` and `stop` are for one thread."""

    def __init__(self, settings: GatewaySettings, on_message: Callable[[str], None]) -> None:
        self._settings, self._on_message = settings, on_message
        self._workers: list[subprocess.Popen[bytes]] = []
        self._stopping = threading.Event()
        self._supervisor: threading.Thread | None = None
        self._socket: socket.socket | None = None
        self._audit_lock = -1
        self.port = 0
        self._text = ""

    @property
    def url(self) -> str:
        """The base URL for OpenAI's clients."""
        host = self._settings.host
        shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
        return f"{'https' if self._settings.tls_certificate else 'http'}://{shown}:{self.port}/v1"

    @property
    def needs_key(self) -> bool:
        """Whether requests need an API key."""
        return read_key_file(self._settings.keys) is not None

    @property
    def announcement(self) -> str:
        """Where the gateway is, and who may use it, in one sentence."""
        needs = (
            "requests need an API key"
            if self.needs_key
            else "every user of this machine may use it without an API key (`inflight key add` creates one)"
        )
        return f"OpenAI API at {self.url}; {needs}."

    def bind(self) -> None:
        """Take the port and the audit log.

        Raises InflightError `port_in_use`, `invalid_parameter`, `audit_unusable`.
        """
        if self._settings.audit_options is not None:
            self._audit_lock = self._settings.audit_options.lock()
        host, port = self._settings.host, self._settings.port
        try:
            self._socket = listen(host, port)
        except PermissionError:
            raise InflightError(
                f"you may not listen on port {port}; choose one above 1023", "invalid_parameter"
            ) from None
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise InflightError(
                    f"another program uses port {port} of {host}; pass another --port, or 0 for any free one",
                    "port_in_use",
                ) from None
            raise InflightError(
                f"the gateway can't listen at {host}: {error.strerror or error}; pass an address of this machine",
                "invalid_parameter",
            ) from None
        self.port = self._socket.getsockname()[1]

    def start(self, servers: tuple[str, ...] | None = None, fleet: str = "") -> None:
        """Start the workers; `servers` replaces those of the settings. They report not ready until a server is.

        `fleet` is the socket of what starts and stops these servers, each for the requests that name its model.
        """
        if self._socket is None:
            self.bind()
        values = self._settings if servers is None else replace(self._settings, servers=servers, fleet=fleet)
        self._text = values.to_json()
        # Started by the thread that watches them: they end with the thread that started them.
        self._supervisor = threading.Thread(target=self._supervise, name="gateway-supervisor", daemon=True)
        self._supervisor.start()

    def stop(self, drain_seconds: float = 0.0, force: Callable[[], bool] = lambda: False) -> None:
        """Accept no connections, let open requests finish for up to `drain_seconds`, and end the workers."""
        self._stopping.set()
        if self._socket is not None:
            self._socket.close()
        if self._supervisor is not None:
            for worker in self._workers:
                worker.send_signal(signal.SIGTERM)
            flush_seconds = FLUSH_SECONDS if self._settings.otlp_endpoint else 0
            until = time.monotonic() + drain_seconds + flush_seconds + 1
            while any(worker.poll() is None for worker in self._workers) and time.monotonic() < until and not force():
                time.sleep(0.05)
            for worker in self._workers:
                worker.kill()
            self._supervisor.join(_KILL_SECONDS)
        if self._audit_lock >= 0:
            os.close(self._audit_lock)
            self._audit_lock = -1

    def _supervise(self) -> None:
        with tempfile.TemporaryDirectory(prefix="inflight-gateway-") as directory:
            try:
                self._run(directory if self._settings.workers > 1 else "")
            except OSError as error:
                self._on_message(f"The gateway can't be started: {error}.")

    def _run(self, metrics: str) -> None:
        self._workers = [self._spawn(metrics) for _ in range(self._settings.workers)]
        began, failures = time.monotonic(), 0
        while not self._stopping.wait(_CHECK_SECONDS):
            for index, worker in enumerate(self._workers):
                if (code := worker.poll()) is None:
                    continue
                failures = 1 if time.monotonic() - began > _STABLE_SECONDS else failures + 1
                began = time.monotonic()
                self._on_message(f"A process of the gateway ended ({_exit(code)}); it is started again.")
                if self._stopping.wait(min(_MAX_PAUSE_SECONDS, 0.1 * 2**failures)):
                    break
                try:
                    if metrics:
                        mark_process_dead(worker.pid, metrics)  # type: ignore[no-untyped-call]
                    self._workers[index] = self._spawn(metrics)
                except OSError as error:  # the ended one is found again, and tried again after a longer pause
                    self._on_message(f"No process of the gateway can be started: {error}.")
        for worker in self._workers:
            worker.wait()

    def _spawn(self, metrics: str) -> subprocess.Popen[bytes]:
        assert self._socket is not None
        number = self._socket.fileno()
        guard = inflight.common.process_guard.__file__
        command = python_module("inflight.gateway.server", str(number))
        return subprocess.Popen(
            [sys.executable, "-I", "-S", guard, *command],
            stdin=subprocess.DEVNULL,
            pass_fds=(number,),
            start_new_session=True,
            env=_environment(metrics) | {SETTINGS_VARIABLE: self._text},
        )


def _environment(metrics: str) -> dict[str, str]:
    """Return that of a worker; the libraries read even an empty directory as several processes."""
    kept = {name: value for name, value in os.environ.items() if name.upper() != DIRECTORY_VARIABLE}
    return {**kept, DIRECTORY_VARIABLE: metrics} if metrics else kept


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises OSError."""
    name = host.strip("[]")
    family = socket.AF_INET6 if ":" in name else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted connections inherit these: a peer that vanished, or that reads nothing, is noticed within minutes.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEP_ALIVE.items():
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        sock.bind((name, port))
        sock.listen(2048)
    except BaseException:
        sock.close()
        raise
    return sock


def _exit(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
