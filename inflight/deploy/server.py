"""A served engine: assembled, started, watched, started again when something dies, drained and stopped."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import psutil

from build_engines.manifest import Manifest
from inflight.deploy import ports
from inflight.deploy.deployment import find_source
from inflight.deploy.drain import drain
from inflight.deploy.errors import DeployError, ServerCrashError, ServerHangError, refused
from inflight.deploy.grpc_tls import GrpcTls
from inflight.deploy.launch import Mode
from inflight.deploy.life import START_ATTEMPTS, Life
from inflight.deploy.log import LogRelay, forgiving
from inflight.deploy.ports import LOOPBACK, Hosts, is_loopback
from inflight.deploy.pulse import Patience, Pulse
from inflight.deploy.repository import ENGINE_MODEL, TEXT_MODELS, DeploymentOptions
from inflight.deploy.run_directory import RunDirectory
from inflight.deploy.starter import Starter

# From SIGTERM to SIGKILL: for a server that has drained, which only unloads its models, and for one that has not, or
# in which something died. Streams of a dead stub never end, so Triton would wait for them in vain.
_STOP_SECONDS = 5.0
_END_SECONDS = 2.0
_WATCH_SECONDS = 0.1
_GOOD_LIFE_SECONDS = 10.0  # before the next start of a server that generated for less than this comes a pause
_LONGEST_PAUSE_SECONDS = 8.0
# How long the watcher may take to see that it is to stop, before the start that it waits for is killed.
_WATCHER_SECONDS = 5.0


@dataclass(frozen=True)
class ServerSettings:
    """Where a server listens (None and 0: any free port), and how it is watched.

    `start_seconds` is allowed from the start to the first token. A server that has generated is started again however
    often it dies; it is given up after `failures` starts in a row that generated nothing. With `verbose` Triton's whole
    log is reported, else its warnings and errors. `multi_gpu` is how an engine on several GPUs is started; None: as it
    fits (see `inflight.deploy.launch`). With `grpc_tls` gRPC is spoken over TLS alone. `request_log` gets a line for
    each answer.
    """

    host: str = "127.0.0.1"
    http_port: int | None = None
    grpc_port: int | None = None
    metrics_port: int | None = None
    start_seconds: float = 900.0
    failures: int = 5
    verbose: bool = False
    multi_gpu: Mode | None = None
    grpc_tls: GrpcTls | None = None
    request_log: Path | None = None
    patience: Patience = field(default_factory=Patience)
    http_host: str | None = None
    """None: `host`, or loopback where gRPC accepts only clients with a certificate."""
    metrics_host: str | None = None
    """As `http_host`."""
    behind_proxy: bool = False
    """Whether a proxy or gateway checks what other machines send."""

    @cached_property
    def hosts(self) -> Hosts:
        """Where each port listens, in numbers. Raises DeployError `invalid_parameter` for a name without an address."""
        others = LOOPBACK if self._certificates else self.host
        named = (self.http_host or others, self.host, self.metrics_host or others)
        return Hosts(*(ports.numeric(host) for host in named))

    def check(self) -> None:
        """Refuse to listen to other machines with nothing before the server. Raises DeployError `invalid_parameter`."""
        reached = (self.hosts.http, self.hosts.metrics, *(() if self._certificates else (self.hosts.grpc,)))
        reached = tuple(host for host in reached if not is_loopback(host))
        if reached and not self.behind_proxy:
            raise DeployError(
                f"At {reached[0]} other machines can reach the server, and any client can crash it (docs/security.md);"
                " listen on 127.0.0.1, or put a proxy in front of it and pass --behind-proxy.",
                "invalid_parameter",
            )

    @property
    def _certificates(self) -> bool:
        """Whether clients of gRPC must show a certificate."""
        return self.grpc_tls is not None and self.grpc_tls.ca is not None


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class Server:
    """A context manager: inside it the engine is served, and generates.

        with Server(Path("my-engine")) as server:
            print(server.grpc_address)

    `engine` is an engine directory, or an assembled repository: its directory or its address on S3.

    Whatever dies of it is started again on the same ports. Nothing of it outlives this process, not even one
    that is killed. Thread-safe but for `start` and `stop`, which are one thread's business.
    """

    def __init__(
        self,
        engine: Path | str,
        options: DeploymentOptions | None = None,
        settings: ServerSettings | None = None,
        report: Callable[[str], None] = to_stderr,
    ) -> None:
        self.engine = Path(engine)
        self._place = engine
        self.failure: DeployError | None = None
        self.restarts = 0
        self._options = options or DeploymentOptions()
        self._settings = settings or ServerSettings()
        self._report = forgiving(report)
        self._stopping = threading.Event()
        self._over = threading.Event()
        self._standing = False
        self._life: Life | None = None
        self._starting: Life | None = None
        self._relay: LogRelay | None = None
        self._watcher: threading.Thread | None = None

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Verify the engine, start the server, and return once it has generated a token.

        Raises BuildError for an engine directory that can't be served, DeployError `port_in_use`,
        `server_not_found`, `server_start_failed`, `disk_full`, and as `find_source`, `preflight` and `launch` do.
        """
        try:
            self._start()
        except (OSError, psutil.Error) as error:
            raise refused(error) from error

    def _start(self) -> None:
        wanted = self._settings
        wanted.check()
        source = find_source(self._place, self._options)
        self.manifest: Manifest = source.manifest
        self.ports = ports.choose(wanted.hosts, wanted.http_port, wanted.grpc_port, wanted.metrics_port)
        self.run = RunDirectory.create()
        self._relay = LogRelay(self.run.log, self._report, everything=wanted.verbose)
        try:
            self.run.log.touch(0o600)
            log = wanted.request_log
            self._starter = Starter.prepare(source, self._options, wanted.multi_gpu, log, self.run, self._report)
            self.kv_cache_tokens = self._starter.deployment.kv_cache_tokens
            self._begin_first_life()
        except BaseException:
            self._clean_up(keep_log=True)
            raise
        self._watcher = threading.Thread(target=self._watch, name="server-watch", daemon=True)
        self._watcher.start()

    def stop(self, drain_seconds: float = 0.0, hurry: Callable[[], bool] = lambda: False) -> bool:
        """Stop, after letting the running requests finish for up to `drain_seconds`; whether all of them did.

        New requests are refused at once. `hurry` is asked whether to stop waiting. Without time, it is gone at once.
        """
        self._stopping.set()
        self._end_watcher()
        drained, end_seconds = True, 0.0
        if drain_seconds > 0 and self._standing and (life := self._life) is not None:
            drained = drain(life.probe, [*TEXT_MODELS, ENGINE_MODEL], drain_seconds, hurry, life.process.cpu_seconds)
            end_seconds = _STOP_SECONDS if drained else _END_SECONDS
        self._clean_up(end_seconds)
        return drained

    def wait(self, seconds: float | None = None) -> bool:
        """Block until the server is over, at most `seconds`; whether it is. Raises DeployError if it failed."""
        over = self._over.wait(seconds)
        if self.failure is not None:
            raise self.failure
        return over

    @property
    def ready(self) -> bool:
        """Whether it stands: false while it is started again, and after it was stopped or given up."""
        return self._standing

    @property
    def pid(self) -> int:
        """The process id of tritonserver; under mpirun, of the first rank's."""
        return self._current().process.server_pid

    @property
    def life(self) -> Life:
        """The present life: its processes, and how to ask it."""
        return self._current()

    @property
    def http_address(self) -> str:
        return _address(self._settings.hosts.http, self.ports.http)

    @property
    def grpc_address(self) -> str:
        return _address(self._settings.host, self.ports.grpc)

    @property
    def metrics_address(self) -> str:
        return _address(self._settings.hosts.metrics, self.ports.metrics)

    def _current(self) -> Life:
        if self._life is None:
            raise RuntimeError("the server is not running")
        return self._life

    def _begin_first_life(self) -> None:
        """Begin on the ports chosen, or on others if somebody was quicker there; once more if Triton crashes."""
        wanted = self._settings
        for attempt in range(1, START_ATTEMPTS + 1):
            try:
                self._begin_life()
                return
            except DeployError as error:
                taken = not self.ports.are_free(wanted.hosts)
                if attempt == START_ATTEMPTS or not (taken or isinstance(error, (ServerCrashError, ServerHangError))):
                    raise
                self._report(f"{error} Trying again.")
                if taken:
                    self.ports = ports.choose(wanted.hosts, wanted.http_port, wanted.grpc_port, wanted.metrics_port)

    def _begin_life(self) -> None:
        """Start the processes and wait for the first token; on any failure nothing is left running."""
        self._mute(True)  # what a start has to say is in the error if it fails
        life = self._starter.begin(self._settings.hosts, self.ports, self._settings.grpc_tls)
        self._starting = life
        try:
            life.await_token(self._settings.start_seconds, self._stopping.is_set, self._settings.patience.start_idle)
        except BaseException:
            life.end(_END_SECONDS)
            raise
        self._mute(False)
        self._life = life
        self._standing = True

    def _mute(self, mute: bool) -> None:
        if self._relay is not None:
            self._relay.muted = mute and not self._settings.verbose

    def _watch(self) -> None:
        """The watcher's thread: it never ends silently, as nobody would notice the server's death any more."""
        try:
            self._keep_alive()
        except Exception as error:
            self._standing = False
            self.failure = DeployError(
                f"The server can't be watched any more ({type(error).__name__}: {error}) and is given up;"
                f" its log is {self.run.log}.",
                "server_start_failed",
            )
            self._over.set()

    def _keep_alive(self) -> None:
        setbacks = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            cause = self._until_death()
            if cause is None or self._stopping.is_set():
                return
            self._standing = False
            died = time.monotonic()
            setbacks = 1 if died - began > _GOOD_LIFE_SECONDS else setbacks + 1
            self._report(f"{cause}; the server is started again.")
            self._current().farewell(self._stopping.wait)
            self._mute(True)
            self._current().end(_END_SECONDS)
            setbacks = self._revive(setbacks)
            if not self._standing:
                return
            self.restarts += 1
            self._report(f"The server answers again, after {time.monotonic() - died:.1f} s.")

    def _until_death(self) -> str | None:
        """Watch one life; who died, or None once the server is to stop."""
        life = self._current()
        pulse = Pulse(life.probe, life.process.cpu_seconds, self._settings.patience)
        while not self._stopping.wait(_WATCH_SECONDS):
            cause = life.death() or pulse.check()
            if cause is not None:
                return cause
        return None

    def _revive(self, setbacks: int) -> int:
        """Try until the server stands, with pauses that grow with the setbacks, or is given up. Returns the setbacks.

        A start that crashes does not count towards giving up: the server has generated before, so what is wrong is
        nothing that it always lacks, and clients send requests from the moment at which its ports are open.
        """
        failed = 0
        while failed < self._settings.failures:
            if self._stopping.wait(_pause(setbacks)):
                return setbacks
            try:
                self._begin_life()
                return setbacks
            except (DeployError, OSError, psutil.Error) as error:
                if self._stopping.is_set():
                    return setbacks
                setbacks += 1
                failed += not isinstance(error, ServerCrashError)
                self._report(str(error))
        self.failure = DeployError(
            f"The server failed to start {failed} times in a row and is given up; its log is {self.run.log}.",
            "server_start_failed",
        )
        self._over.set()
        return setbacks

    def _end_watcher(self) -> None:
        """Wait until the watcher has ended, but not for long: it may itself wait for a server that does not answer.

        One that asks a server which stands changes nothing any more; a server that is being started is killed.
        """
        if self._watcher is None:
            return
        self._watcher.join(_WATCHER_SECONDS)
        if self._watcher.is_alive() and not self._standing:
            if self._starting is not None:
                self._starting.process.kill()
            self._watcher.join(_WATCHER_SECONDS)

    def _clean_up(self, end_seconds: float = _END_SECONDS, *, keep_log: bool = False) -> None:
        self._standing = False
        if self._life is not None:
            self._life.end(end_seconds)
            self._life = None
        if self._relay is not None:
            self._relay.close()
            self._relay = None
            self.run.close(keep_log=keep_log or self.failure is not None)
        self._over.set()


def _address(host: str, port: int) -> str:
    return f"{ports.in_brackets(ports.reachable(host))}:{port}"


def _pause(setbacks: int) -> float:
    """Seconds before a start: none after the first setback, then 1, 2, 4 and so on up to a limit."""
    return min(2.0 ** (min(setbacks, 9) - 2), _LONGEST_PAUSE_SECONDS) if setbacks > 1 else 0.0
