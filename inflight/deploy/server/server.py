"""Served engines: assembled, started, watched, restarted after failures, drained and stopped."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import psutil

from inflight.deploy.errors import DeployError, ServerCrashError, ServerHangError, invalid, system_error
from inflight.deploy.repository.engine_set import AnyManifest
from inflight.deploy.repository.options import DeploymentOptions
from inflight.deploy.server import ports
from inflight.deploy.server.grpc_tls import GrpcTls
from inflight.deploy.server.instance import MAX_START_ATTEMPTS, ServerInstance, drain
from inflight.deploy.server.launcher import ServerLauncher
from inflight.deploy.server.liveness import LivenessMonitor, LivenessTimeouts
from inflight.deploy.server.ports import LOOPBACK, ListenHosts, is_loopback
from inflight.deploy.server.process_layout import MultiGpuMode
from inflight.deploy.server.run_directory import ServerRunDirectory
from inflight.deploy.server.source import find_source
from inflight.deploy.server.triton_log import LogRelay, ignore_write_errors

# From SIGTERM to SIGKILL: for a server that has drained and only unloads its models, and for one that has not drained
# or in which a process died. Streams of a dead stub never end, so Triton would wait for them forever.
_STOP_TIMEOUT = 5.0
_KILL_TIMEOUT = 2.0
_CHECK_INTERVAL = 0.1
_STABLE_SECONDS = 10.0  # a server that answered for less than this is restarted after a pause
_MAX_RESTART_WAIT = 8.0
# How long the watcher may take to notice the stop, before the start for which it waits is killed.
_WATCHER_TIMEOUT = 5.0


@dataclass(frozen=True)
class ServerSettings:
    """Where a server listens (None and 0: any free port), and how it is watched.

    `start_timeout` is the limit from the start to the first answer of each model. A server that has answered is
    restarted every time it dies; it is given up after `max_start_failures` consecutive starts without answers. With
    `verbose`, Triton's whole log is reported, else its warnings and errors. `multi_gpu` is how an engine on several
    GPUs is started; None chooses the mode (see `inflight.deploy.server.process_layout`). With `grpc_tls`, gRPC requires
    TLS. `request_log` gets a line for each answer.
    """

    host: str = "127.0.0.1"
    http_port: int | None = None
    grpc_port: int | None = None
    metrics_port: int | None = None
    start_timeout: float = 900.0
    max_start_failures: int = 5
    verbose: bool = False
    multi_gpu: MultiGpuMode | None = None
    grpc_tls: GrpcTls | None = None
    request_log: Path | None = None
    liveness: LivenessTimeouts = field(default_factory=LivenessTimeouts)
    http_host: str | None = None
    """None: `host`, or loopback if gRPC accepts only clients with a certificate."""
    metrics_host: str | None = None
    """Like `http_host`."""
    behind_proxy: bool = False
    """Whether a proxy or gateway checks other machines' requests."""

    @cached_property
    def hosts(self) -> ListenHosts:
        """Return the numeric address of each port. Raises DeployError `invalid_parameter` for an unresolvable name."""
        others = LOOPBACK if self._requires_client_certificates else self.host
        named = (self.http_host or others, self.host, self.metrics_host or others)
        return ListenHosts(*(ports.numeric(host) for host in named))

    def check(self) -> None:
        """Refuse to listen to other machines without protection. Raises DeployError `invalid_parameter`."""
        reached = (
            self.hosts.http,
            self.hosts.metrics,
            *(() if self._requires_client_certificates else (self.hosts.grpc,)),
        )
        reached = tuple(host for host in reached if not is_loopback(host))
        if reached and not self.behind_proxy:
            raise invalid(
                f"Other machines can reach the server at {reached[0]}, and any client can crash it (docs/security.md);"
                " listen on 127.0.0.1, or put a proxy in front of it and pass --behind-proxy."
            )

    def reserved_ports(self) -> AbstractContextManager[ports.ListenPorts]:
        """Return the ports, reserved in the block. Raises DeployError as `ports.reserved_ports` does."""
        return ports.reserved_ports(self.hosts, self.http_port, self.grpc_port, self.metrics_port)

    @property
    def _requires_client_certificates(self) -> bool:
        """Return whether gRPC clients must present a certificate."""
        return self.grpc_tls is not None and self.grpc_tls.ca is not None


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class Server:
    """A context manager: inside it the engines are served, and answer.

        with Server(Path("my-engine")) as server:
            print(server.grpc_address)

    `engine` is an engine directory, for generation or an encoder, or an assembled repository: its directory or its
    address on S3. `options.encoders` names encoders to serve beside an engine directory.

    Whatever dies of it is started again on the same ports. Nothing of it outlives this process, not even one
    that is killed. Thread-safe but for `start` and `stop`, which never run at once.
    """

    socket = ""
    """A server is asked for nothing but requests; see `Fleet`."""

    def __init__(
        self,
        engine: Path | str,
        options: DeploymentOptions | None = None,
        settings: ServerSettings | None = None,
        on_message: Callable[[str], None] = to_stderr,
    ) -> None:
        self.engine = Path(engine)
        self._location = engine
        self.failure: DeployError | None = None
        self.restarts = 0
        self._options = options or DeploymentOptions()
        self._settings = settings or ServerSettings()
        self._on_message = ignore_write_errors(on_message)
        self._reserved = ExitStack()
        self._stopping = threading.Event()
        self._finished = threading.Event()
        self._is_ready = False
        self._instance: ServerInstance | None = None
        self._starting_instance: ServerInstance | None = None
        self._relay: LogRelay | None = None
        self._watcher: threading.Thread | None = None

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Verify the engines, start the server, and return once the models of each have answered.

        Raises BuildError for an engine directory that can't be served, DeployError `port_in_use`, `server_not_found`,
        `server_start_failed`, `disk_full`, and as `find_source`, `check_engine` and `choose_layout` do.
        """
        try:
            self._start()
        except (OSError, psutil.Error) as error:
            raise system_error(error) from error

    def _start(self) -> None:
        settings = self._settings
        settings.check()
        source = find_source(self._location, self._options)
        self.engines = source.engines
        self.model_name = source.model_name
        self._reserve_ports()
        self.run_directory = ServerRunDirectory.create()
        self._relay = LogRelay(self.run_directory.log, self._on_message, everything=settings.verbose)
        try:
            self.run_directory.log.touch(0o600)
            self._launcher = ServerLauncher.prepare(
                source,
                self._options,
                settings.multi_gpu,
                settings.request_log,
                self.run_directory,
                self._on_message,
            )
            self.kv_cache_tokens = self._launcher.repository.kv_cache_tokens
            self._start_first_instance()
        except BaseException:
            self._clean_up(keep_log=True)
            raise
        self._watcher = threading.Thread(target=self._run_watcher, name="server-watcher", daemon=True)
        self._watcher.start()

    def stop(self, drain_seconds: float = 0.0, force: Callable[[], bool] = lambda: False) -> bool:
        """Stop, after letting running requests finish for up to `drain_seconds`; return whether all of them did.

        New requests are refused at once. `force` is polled and may end the wait. With 0 seconds, it stops at once.
        """
        self._stopping.set()
        self._stop_watcher()
        drained, end_seconds = True, 0.0
        if drain_seconds > 0 and self._is_ready and (instance := self._instance) is not None:
            drained = drain(instance.probe, drain_seconds, force, instance.process.cpu_seconds)
            end_seconds = _STOP_TIMEOUT if drained else _KILL_TIMEOUT
        self._clean_up(end_seconds)
        return drained

    def interrupt(self) -> None:
        """Let a `start` of another thread fail soon. Thread-safe."""
        self._stopping.set()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the server has stopped, at most `seconds`; return whether it has. Raises DeployError."""
        over = self._finished.wait(seconds)
        if self.failure is not None:
            raise self.failure
        return over

    @property
    def ready(self) -> bool:
        """Return whether it is ready: False during a restart, and after it was stopped or given up."""
        return self._is_ready

    @property
    def manifest(self) -> AnyManifest:
        """The main engine's manifest: of the one that generates, else of the first encoder."""
        return self.engines.main

    @property
    def manifests(self) -> tuple[AnyManifest, ...]:
        """The manifests of all engines."""
        return self.engines.all

    @property
    def addresses(self) -> tuple[str, ...]:
        """The one address, as the gateway takes it."""
        return (ports.gateway_address(self._settings.hosts, self.ports.grpc, self.ports.metrics),)

    @property
    def pid(self) -> int:
        """Return the process id of tritonserver; under mpirun, of the first rank's."""
        return self.instance.process.server_pid

    @property
    def instance(self) -> ServerInstance:
        """Return the current instance: its processes and its probe."""
        if self._instance is None:
            raise RuntimeError("the server is not running")
        return self._instance

    @property
    def http_address(self) -> str:
        return ports.address(self._settings.hosts.http, self.ports.http)

    @property
    def grpc_address(self) -> str:
        return ports.address(self._settings.host, self.ports.grpc)

    @property
    def metrics_address(self) -> str:
        return ports.address(self._settings.hosts.metrics, self.ports.metrics)

    def _start_first_instance(self) -> None:
        """Start on the chosen ports, or on others if these were taken meanwhile; retry once if Triton crashes."""
        for attempt in range(1, MAX_START_ATTEMPTS + 1):
            try:
                self._start_instance()
                return
            except DeployError as error:
                taken = not self.ports.are_free(self._settings.hosts)
                if attempt == MAX_START_ATTEMPTS or not (
                    taken or isinstance(error, (ServerCrashError, ServerHangError))
                ):
                    raise
                self._on_message(f"{error} Trying again.")
                if taken:
                    self._reserve_ports()

    def _reserve_ports(self) -> None:
        """Choose ports and reserve them until the server stops, so that it finds them free also at a restart."""
        self._reserved.close()
        self.ports = self._reserved.enter_context(self._settings.reserved_ports())

    def _start_instance(self) -> None:
        """Start the processes and wait for the first answers; on failure, end all of them."""
        self._mute_log(True)  # the error of a failed start has all relevant lines
        instance = self._launcher.start(self._settings.hosts, self.ports, self._settings.grpc_tls)
        self._starting_instance = instance
        try:
            instance.wait_until_answering(
                self._settings.start_timeout, self._stopping.is_set, self._settings.liveness.start_idle_timeout
            )
        except BaseException:
            instance.stop(_KILL_TIMEOUT)
            raise
        self._mute_log(False)
        self._instance = instance
        self._is_ready = True

    def _mute_log(self, mute: bool) -> None:
        if self._relay is not None:
            self._relay.muted = mute and not self._settings.verbose

    def _run_watcher(self) -> None:
        """Run the watcher's thread, which reports every error: otherwise a dead server would go unnoticed."""
        try:
            self._supervise()
        except Exception as error:
            self._is_ready = False
            self.failure = DeployError(
                f"The server can't be watched any more ({type(error).__name__}: {error}) and is given up;"
                f" its log is {self.run_directory.log}.",
                "server_start_failed",
            )
            self._finished.set()

    def _supervise(self) -> None:
        setbacks = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            cause = self._wait_for_exit()
            if cause is None or self._stopping.is_set():
                return
            self._is_ready = False
            died = time.monotonic()
            setbacks = 1 if died - began > _STABLE_SECONDS else setbacks + 1
            self._on_message(f"{cause}; the server is started again.")
            self.instance.reject_and_flush(self._stopping.wait)
            self._mute_log(True)
            self.instance.stop(_KILL_TIMEOUT)
            setbacks = self._restart(setbacks)
            if not self._is_ready:
                return
            self.restarts += 1
            self._on_message(f"The server answers again, after {time.monotonic() - died:.1f} s.")

    def _wait_for_exit(self) -> str | None:
        """Watch one instance; return which process died, or None once the server is to stop."""
        instance = self.instance
        pulses = [
            LivenessMonitor(instance.probe, task, partial(instance.cpu_seconds, task), self._settings.liveness)
            for task in instance.probe.tasks
        ]
        while not self._stopping.wait(_CHECK_INTERVAL):
            cause = next(filter(None, (instance.exit_reason(), *(pulse.check() for pulse in pulses))), None)
            if cause is not None:
                return cause
        return None

    def _restart(self, failures: int) -> int:
        """Retry until the server is ready or given up, with pauses that grow with failures; return their number.

        A start that crashes does not count as a failure: the server has answered before, so nothing is permanently
        missing, and clients may send requests as soon as its ports are open.
        """
        failed = 0
        while failed < self._settings.max_start_failures:
            if self._stopping.wait(_restart_wait(failures)):
                return failures
            try:
                self._start_instance()
                return failures
            except (DeployError, OSError, psutil.Error) as error:
                if self._stopping.is_set():
                    return failures
                failures += 1
                failed += not isinstance(error, ServerCrashError)
                self._on_message(str(error))
        self.failure = DeployError(
            f"The server failed to start {failed} times in a row and is given up; its log is {self.run_directory.log}.",
            "server_start_failed",
        )
        self._finished.set()
        return failures

    def _stop_watcher(self) -> None:
        """Wait until the watcher has ended, with a timeout: it may itself wait for a server that does not answer.

        A watcher that probes a ready server changes nothing any more; a starting server is killed.
        """
        if self._watcher is None:
            return
        self._watcher.join(_WATCHER_TIMEOUT)
        if self._watcher.is_alive() and not self._is_ready:
            if self._starting_instance is not None:
                self._starting_instance.process.kill()
            self._watcher.join(_WATCHER_TIMEOUT)

    def _clean_up(self, stop_timeout: float = _KILL_TIMEOUT, *, keep_log: bool = False) -> None:
        self._is_ready = False
        if self._instance is not None:
            self._instance.stop(stop_timeout)
            self._instance = None
        if self._relay is not None:
            self._relay.close()
            self._relay = None
            self.run_directory.close(keep_log=keep_log or self.failure is not None)
        self._reserved.close()
        self._finished.set()


def _restart_wait(failures: int) -> float:
    """Return the seconds before a start: 0 after the first failure, then 1, 2, 4 and so on up to a limit."""
    return min(2.0 ** (min(failures, 9) - 2), _MAX_RESTART_WAIT) if failures > 1 else 0.0
