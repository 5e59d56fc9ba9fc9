"""Several models on one machine: a server for each, started when a request names it, and stopped for others.

The workers of the gateway ask over a UNIX socket, in lines of JSON:

    {"use": 7, "model": "tea"}     {"request": 7, "state": "waiting", "seconds": 12.0}
                                   {"request": 7, "state": "loaded"}
                                   {"request": 7, "state": "failed", "message": "...", "seconds": 5.0}
    {"used": "tea"}
    {"done": 7}

A request holds its model from `loaded` to `done`, or to the end of its connection; while it does, and the model is not
`draining`, a worker need not ask for further ones, but says with `used`, once a second, that there are some. At the
beginning and after each change, every worker gets `{"models": [...], "memory": ...}`: all that is known of each model,
and the limit in bytes.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from build_engines.errors import BuildError
from build_engines.manifest import Manifest
from inflight.deploy import memory
from inflight.deploy.errors import DeployError
from inflight.deploy.fleet.residency import Grant, Limits, Load, ModelState, Refuse, Residency, Unload
from inflight.deploy.repository.options import DeploymentOptions
from inflight.deploy.server.ports import gateway_address
from inflight.deploy.server.run_directory import ServerRunDirectory
from inflight.deploy.server.server import Server, ServerSettings

_CHECK_SECONDS = 0.2


def _never() -> bool:
    return False


@dataclass(frozen=True)
class FleetModel:
    """An engine directory to serve under `name`; `bytes` is the memory that it needs."""

    name: str
    engine: Path
    manifest: Manifest
    options: DeploymentOptions
    settings: ServerSettings
    bytes: int
    pinned: bool = False


class Fleet:
    """Serves the models, within the limits. `start` and `stop` are for one thread."""

    def __init__(
        self,
        models: Sequence[FleetModel],
        limits: Limits,
        on_message: Callable[[str], None],
        drain_seconds: float = 30.0,
    ) -> None:
        """A server that is unloaded gets `drain_seconds` for the requests of other clients than the gateway."""
        self.models = {model.name: model for model in models}
        self.servers: dict[str, Server] = {}
        """Those that run, or start, by their models."""
        self.socket = ""
        """The path of the socket, for processes of this user."""
        self.limits = limits
        self._residency = Residency(limits, [ModelState(each.name, each.bytes, each.pinned) for each in models])
        self._on_message, self._drain_seconds = on_message, drain_seconds
        self._stop_seconds, self._force = 0.0, _never
        self._workers: dict[asyncio.StreamWriter, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads = ThreadPoolExecutor(len(models), "fleet")
        self._state = b""
        self._drained = True
        self._failure: BaseException | None = None
        self._began, self._stopping = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="fleet", daemon=True)
        self._held = ExitStack()

    @property
    def addresses(self) -> tuple[str, ...]:
        """Of the servers for the gateway, in the order of the models, whether they run or not."""
        return tuple(
            gateway_address(model.settings.hosts, model.settings.grpc_port, model.settings.metrics_port)
            for model in self.models.values()
        )

    @property
    def manifests(self) -> tuple[Manifest, ...]:
        return tuple(model.manifest for model in self.models.values())

    @property
    def ready(self) -> bool:
        """Whether requests are answered."""
        return self._began.is_set() and self._failure is None and not self._stopping.is_set()

    def start(self) -> None:
        """Take the ports of all models, and load the pinned ones. Raises as `Server.start` does."""
        for model in self.models.values():
            model.settings.check()
            ports = self._held.enter_context(model.settings.reserved_ports())
            chosen = replace(model.settings, http_port=ports.http, grpc_port=ports.grpc, metrics_port=ports.metrics)
            self.models[model.name] = replace(model, settings=chosen)
        directory = ServerRunDirectory.create()
        self._held.callback(directory.close)
        opened = os.open(directory.path, os.O_PATH | os.O_DIRECTORY)
        self._held.callback(os.close, opened)
        self.socket = f"/proc/{os.getpid()}/fd/{opened}/fleet.sock"  # the directory's own path may be too long
        self._thread.start()
        self._began.wait()
        if self._failure is not None:
            raise self._failure

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds` until the fleet has stopped; return whether it has. Raises what ended it."""
        self._thread.join(seconds)
        if self._failure is not None:
            raise self._failure
        return not self._thread.is_alive()

    def stop(self, drain_seconds: float = 0.0, force: Callable[[], bool] = _never) -> bool:
        """Stop all servers as `Server.stop` does; a load is broken off. Return whether all requests had ended."""
        self._stop_seconds, self._force = drain_seconds, force
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._threads.shutdown()
        self._held.close()
        return self._drained

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._began.set()

    async def _serve(self) -> None:
        listening = await asyncio.start_unix_server(self._talk, self.socket)
        os.chmod(self.socket, 0o600)
        try:
            while not self._stopping.is_set():
                self._check()
                await asyncio.sleep(_CHECK_SECONDS)
        finally:
            self._stopping.set()
            for server in self.servers.values():
                if not server.ready:
                    server.interrupt()
            await asyncio.gather(*self._tasks)
            drained = await asyncio.gather(
                *(self._stop_server(name, self._stop_seconds) for name in list(self.servers))
            )
            self._drained = all(drained)
            listening.close()
            for worker in self._workers:
                worker.close()

    def _check(self) -> None:
        """Note servers that were given up, and whether all pinned models are loaded; then decide."""
        for name, server in list(self.servers.items()):
            model = self._residency.models[name]
            if server.failure is not None and model.state in ("loaded", "draining"):
                self._note_failure(name, server.failure)
                self._begin(self._discard(name))
        if not self._began.is_set() and all(
            model.state == "loaded" for model in self._residency.models.values() if model.pinned
        ):
            self._began.set()
        self._step()

    def _step(self) -> None:
        if self._stopping.is_set():
            return
        answers: list[tuple[asyncio.StreamWriter, dict[str, Any]]] = []
        for action in self._residency.step(time.monotonic()):
            match action:
                case Load(name):
                    self._begin(self._load(name))
                case Unload(name):
                    self._begin(self._unload(name))
                case Grant((worker, request)):
                    answers.append((worker, {"request": request, "state": "loaded"}))
                case Refuse((worker, request), message, seconds):
                    failed = {"request": request, "state": "failed", "message": message, "seconds": seconds}
                    answers.append((worker, failed))
        models = [self._described(name) for name in self.models]
        state = _line({"models": models, "memory": self.limits.memory})
        if state != self._state:  # before the answers, which depend on it
            self._state = state
            for worker in self._workers:
                worker.write(state)
        for worker, answer in answers:
            worker.write(_line(answer))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _load(self, name: str) -> None:
        model = self.models[name]
        server = Server(model.engine, model.options, model.settings, lambda line: self._on_message(f"{name}: {line}"))
        self.servers[name] = server
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, _start, model, server)
        except Exception as error:
            del self.servers[name]
            if not self._stopping.is_set():
                self._note_failure(name, error)
        else:
            self._residency.loaded(name, time.monotonic())
            seconds = self._residency.models[name].load_seconds
            self._on_message(f"{name} is loaded, after {seconds:.1f} s.")
        self._step()

    async def _unload(self, name: str) -> None:
        try:
            if not await self._stop_server(name, self._drain_seconds):
                self._on_message(f"{name} was unloaded before all requests of its own clients had ended.")
        finally:  # or no request could load it again
            self._residency.unloaded(name, time.monotonic())
        self._on_message(f"{name} is unloaded.")
        self._step()

    async def _discard(self, name: str) -> None:
        await self._stop_server(name, 0)

    async def _stop_server(self, name: str, drain_seconds: float) -> bool:
        server = self.servers.pop(name)
        stop = partial(server.stop, drain_seconds, lambda: self._force())
        return await asyncio.get_running_loop().run_in_executor(self._threads, stop)

    def _note_failure(self, name: str, error: Exception) -> None:
        known = isinstance(error, DeployError | BuildError)
        code = error.code if known else type(error).__name__  # type: ignore[attr-defined]
        # Clients get the code alone: the sentence may name directories.
        message = f"the model {name} can't be loaded ({code}); the log of the server says why"
        self._residency.failed(name, message, time.monotonic())
        if self._began.is_set():
            self._on_message(f"{name} can't be loaded: {error}" if known else f"{message}: {error}")
        elif self.models[name].pinned:
            self._failure = error
            self._stopping.set()

    def _described(self, name: str) -> dict[str, Any]:
        """Return a model as the messages to the workers describe it."""
        model, state = self.models[name], self._residency.models[name]
        return {
            "name": name,
            "state": "loaded" if state.state == "draining" else state.state,
            "draining": state.state == "draining",
            "pinned": model.pinned,
            "bytes": model.bytes,
            "max_seq_len": model.manifest.max_seq_len,
            "loads": state.loads,
            "unloads": state.unloads,
            "load_seconds": state.load_seconds if state.loads else None,
            "error": state.error or None,
        }

    async def _talk(self, reader: asyncio.StreamReader, worker: asyncio.StreamWriter) -> None:
        """Serve a worker's connection; its requests end with it."""
        self._workers[worker] = None
        worker.write(self._state)
        try:
            while line := await reader.readline():
                self._obey(worker, json.loads(line))
        except (ValueError, KeyError, TypeError, OSError) as error:
            self._on_message(f"A process of the gateway sent what is no request for a model ({error}); it is left.")
        finally:
            del self._workers[worker]
            for model in self._residency.models.values():
                for request in [each for each in (*model.holds, *model.waiting) if each[0] is worker]:
                    self._residency.done(request, time.monotonic())
            worker.close()
            self._step()

    def _obey(self, worker: asyncio.StreamWriter, message: dict[str, Any]) -> None:
        if "done" in message:
            self._residency.done((worker, message["done"]), time.monotonic())
            self._step()
            return
        if "used" in message:
            self._residency.used_again(message["used"], time.monotonic())
            return
        name, request = message["model"], message["use"]
        self._residency.use(name, (worker, request))
        self._step()
        if (worker, request) in self._residency.models[name].waiting:
            seconds = self._residency.seconds(name, time.monotonic())
            worker.write(_line({"request": request, "state": "waiting", "seconds": seconds}))


def _start(model: FleetModel, server: Server) -> None:
    available = memory.available_bytes()
    if model.bytes > available:
        raise DeployError(
            f"The model {model.name} needs about {model.bytes / 2**30:.1f} GiB of memory, and"
            f" {available / 2**30:.1f} GiB are available; free memory, or lower --memory or --kv-cache-tokens.",
            "server_start_failed",
        )
    server.start()


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"
