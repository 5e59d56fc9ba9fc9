from __future__ import annotations

import http.client
import os
import signal
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from inflight_client import Client

from build_engines.errors import BuildError
from inflight.deploy.errors import DeployError
from inflight.deploy.repository.configure import TEXT_MODELS, DeploymentOptions
from inflight.deploy.server import ports
from inflight.deploy.server.liveness import LivenessTimeouts
from inflight.deploy.server.probe import ProbeError
from inflight.deploy.server.run_directory import SHARED_MEMORY_DIRECTORY, stale_run_directories
from inflight.deploy.server.server import Server, ServerSettings
from tests.fixtures.engines import TinyEngine
from tests.fixtures.errors import raises
from tests.fixtures.open_streams import TIMEOUT, BackgroundStream, open_streams
from tests.fixtures.server import ENDLESS, STEP_SECONDS, paced
from tests.fixtures.waiting import wait_until


def test_a_started_server_generates_at_once(server: Server) -> None:
    assert server.ready
    with Client(server.grpc_address) as client:
        assert client.generate("hello", max_tokens=4).output_tokens == 4


def test_it_listens_at_home_alone(server: Server) -> None:
    for port in (server.ports.http, server.ports.grpc, server.ports.metrics):
        with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT):
            pass
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), timeout=TIMEOUT)


def test_nobody_without_the_key_can_unload_a_model(server: Server) -> None:
    stranger = type(server.instance.probe)("127.0.0.1", server.ports.http, "guess")
    with pytest.raises(ProbeError, match="restricted"):
        stranger.unload("ensemble")
    assert server.instance.probe.ready()


def test_the_server_runs_the_environment_and_the_package_that_started_it(server: Server) -> None:
    backend = server.run_directory.path / "triton" / "pytriton" / "tritonserver" / "backends" / "python"
    assert (backend / "inflight").resolve() == Path(__file__).parents[3] / "inflight"
    assert {member.name for member in server.instance.process_tree} == {
        "tritonserver",
        "the stub of preprocessing",
        "the stub of tensorrt_llm",
        "the stub of postprocessing",
        "the engine's process of tensorrt_llm",
    }


@pytest.mark.parametrize("path", ["logging", "trace/setting", "systemsharedmemory/status"])
def test_nobody_without_the_key_can_write_files_or_map_memory(server: Server, path: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.ports.http, timeout=TIMEOUT)
    connection.request("GET", f"/v2/{path}")
    response = connection.getresponse()
    assert (response.status, b"restricted" in response.read()) == (403, True)
    connection.close()


def test_nobody_else_may_read_its_shared_memory(server: Server) -> None:
    regions = list(SHARED_MEMORY_DIRECTORY.glob(f"{server.run_directory.shm_prefix}*"))
    assert regions
    assert {stat.S_IMODE(region.stat().st_mode) for region in regions} == {0o600}


def test_draining_refuses_what_is_new_and_finishes_what_runs_but_waits_for_no_client_that_has_gone(
    tiny_engine: TinyEngine,
) -> None:
    server = Server(tiny_engine("llama"), paced())
    server.start()
    running = [stream for model in TEXT_MODELS for stream in open_streams(server.grpc_address, 4, 100, model)]
    with Client(server.grpc_address) as client:
        left = client.stream("hello", max_tokens=ENDLESS)
        next(left)
        left.close()
    drained: list[bool] = []
    stopping = threading.Thread(target=lambda: drained.append(server.stop(drain_seconds=5 * TIMEOUT)))
    stopping.start()
    late = BackgroundStream(server.grpc_address, 1).start()
    while late.finished.wait(TIMEOUT) and late.completed:  # it may be quicker than the other thread
        late = BackgroundStream(server.grpc_address, 1).start()
    assert late.error is not None
    # Refused by a server that drains; only if all was over by then, no server was left.
    assert late.error.code == "model_not_ready" or all(stream.finished.is_set() for stream in running), late.error
    stopping.join()
    assert drained == [True]
    for stream in running:
        assert stream.finished.wait(TIMEOUT)
        assert stream.completed, stream


@pytest.mark.parametrize(
    ("drain_seconds", "hurried"), [(0.5, False), pytest.param(5 * TIMEOUT, True, marks=pytest.mark.slow)]
)
def test_a_drain_ends_when_its_time_is_over_or_somebody_hurries(
    tiny_engine: TinyEngine, drain_seconds: float, hurried: bool
) -> None:
    server = Server(tiny_engine("llama"), paced())
    server.start()
    shm_prefix, run = server.run_directory.shm_prefix, server.run_directory.path
    streams = open_streams(server.grpc_address, count=8, max_tokens=ENDLESS)
    began = time.monotonic()
    assert server.stop(drain_seconds, force=lambda: hurried) is False
    assert time.monotonic() - began < TIMEOUT
    for stream in streams:
        assert stream.finished.wait(TIMEOUT)
        assert stream.error is not None
    assert not run.exists()
    assert not list(SHARED_MEMORY_DIRECTORY.glob(f"{shm_prefix}*"))


def test_a_start_that_fails_says_why_in_the_servers_own_words(tiny_engine: TinyEngine) -> None:
    options = DeploymentOptions(parameters={"tensorrt_llm": {"inflight_engine": "steam"}})
    server = Server(tiny_engine("llama"), options)
    with raises(DeployError, "server_start_failed", naming="steam") as caught:
        server.start()
    assert str(server.run_directory.log) in str(caught.value)  # known only after the start
    assert server.run_directory.log.read_text()
    assert not list(SHARED_MEMORY_DIRECTORY.glob(f"{server.run_directory.shm_prefix}*"))


def test_what_the_machine_refuses_at_the_first_start_is_one_sentence(
    tiny_engine: TinyEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("INFLIGHT_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("LONG", "x" * 200_000)  # no process can be started with that
    files = set(os.listdir("/proc/self/fd"))
    with raises(DeployError, "server_start_failed", naming="Argument list too long"):
        Server(tiny_engine("llama")).start()
    # What other tests of this process left to end by itself may come and go meanwhile.
    wait_until(lambda: set(os.listdir("/proc/self/fd")) <= files)
    assert stale_run_directories(tmp_path) == list(tmp_path.glob("run-*")), "a directory is still held"


def test_parameters_that_nobody_declares_leave_nothing_running(
    tiny_engine: TinyEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("INFLIGHT_RUN_DIR", str(tmp_path))
    server = Server(tiny_engine("llama"), DeploymentOptions(parameters={"tensorrt_llm": {"invented": "1"}}))
    threads = threading.active_count()
    with raises(DeployError, "invalid_parameter", naming="invented"):
        server.start()
    wait_until(lambda: threading.active_count() <= threads)
    assert stale_run_directories(tmp_path) == [server.run_directory.path]


def test_a_busy_port_is_said_before_anything_is_started(tiny_engine: TinyEngine, server: Server) -> None:
    second = Server(tiny_engine("llama"), settings=ServerSettings(http_port=server.ports.http))
    with raises(DeployError, "port_in_use", naming=f"--http-port {server.ports.http}"):
        second.start()
    assert server.instance.probe.ready()


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda path: None, "engine_not_found"),
        (lambda path: path.mkdir(), "engine_not_found"),
        (lambda path: (path.mkdir(), (path / "engine.json").write_text("{")), "engine_damaged"),
        (lambda path: (path.mkdir(), (path / "engine.json").write_text('{"format": 99}')), "engine_incompatible"),
    ],
)
def test_a_directory_that_can_not_be_served_is_named(tmp_path: Path, make: object, code: str) -> None:
    engine = tmp_path / "engine"
    assert callable(make)
    make(engine)
    with raises(BuildError, code, naming=str(engine)):
        Server(engine).start()


def test_a_server_that_can_not_come_back_is_given_up_with_one_message(tiny_engine: TinyEngine) -> None:
    reports: list[str] = []
    settings = ServerSettings(max_start_failures=2)
    with Server(tiny_engine("llama"), paced(), settings, on_message=reports.append) as server:
        # From now on the engine can't be loaded.
        config = server.run_directory.path / "repository" / "tensorrt_llm" / "config.pbtxt"
        config.write_text(config.read_text().replace('"fake"', '"steam"'))
        server.instance.process.signal(9)
        with raises(DeployError, "server_start_failed"):
            server.wait(2 * TIMEOUT)
        assert not server.ready
        assert any("steam" in line for line in reports)


def test_what_the_machine_refuses_at_a_new_start_is_one_more_failure_and_no_report_is_needed(
    tiny_engine: TinyEngine,
) -> None:
    def report(line: str) -> None:
        raise BrokenPipeError

    with Server(tiny_engine("llama"), paced(), ServerSettings(max_start_failures=1), on_message=report) as server:
        server.run_directory.log.unlink()
        server.run_directory.log.mkdir()  # from now on no process can be started: its log can't be written
        server.instance.process.signal(9)
        with raises(DeployError, "server_start_failed"):
            server.wait(TIMEOUT)


def test_a_watch_that_fails_is_said(tiny_engine: TinyEngine) -> None:
    killed = threading.Event()

    def report(line: str) -> None:
        # On a busy machine the first start may crash, and is tried again; what a model prints is the log's thread's.
        if killed.is_set() and threading.current_thread().name == "server-watcher":
            raise RuntimeError("no terminal")

    with Server(tiny_engine("llama"), paced(), on_message=report) as server:
        killed.set()
        server.instance.process.signal(9)
        with raises(DeployError, "server_start_failed", naming="no terminal"):
            server.wait(TIMEOUT)
        assert not server.ready


def test_stopping_does_not_wait_for_the_first_token_of_a_restart(tiny_engine: TinyEngine) -> None:
    server = Server(tiny_engine("llama"), paced(), on_message=lambda line: None)
    server.start()
    # From now on no step ends.
    config = server.run_directory.path / "repository" / "tensorrt_llm" / "config.pbtxt"
    config.write_text(config.read_text().replace(f'\\"{STEP_SECONDS}\\"', '\\"86400\\"'))
    server.instance.process.signal(9)
    wait_until(lambda: not server.ready)
    wait_until(server.instance.probe.ready)
    stopping = threading.Thread(target=server.stop, daemon=True)
    stopping.start()
    stopping.join(TIMEOUT)
    assert not stopping.is_alive()
    assert not server.run_directory.path.exists()


def tritonservers() -> list[psutil.Process]:
    """Those that this process has started."""
    servers = []
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # another one, which has ended meanwhile
            if one.name() == "tritonserver":
                servers.append(one)
    return servers


@pytest.mark.parametrize(("number", "why"), [(signal.SIGABRT, "SIGABRT"), (signal.SIGSTOP, "it hangs")])
def test_a_start_that_crashes_or_hangs_is_said_and_tried_again(tiny_engine: TinyEngine, number: int, why: str) -> None:
    reports: list[str] = []
    settings = ServerSettings(liveness=LivenessTimeouts(start_idle_timeout=5))
    server = Server(tiny_engine("llama"), paced(), settings, on_message=reports.append)
    others = set(tritonservers())

    def crash() -> None:
        wait_until(lambda: set(tritonservers()) - others).pop().send_signal(number)

    killer = threading.Thread(target=crash)
    killer.start()
    with server:
        killer.join()
        assert reports[0].endswith("Trying again.")
        assert why in reports[0]
        with Client(server.grpc_address) as client:
            assert client.generate("again", max_tokens=3).output_tokens == 3


@pytest.mark.parametrize("purpose", ["grpc", "metrics"])
def test_it_listens_at_an_address_that_is_named_and_replaces_a_port_that_somebody_else_takes_first(
    tiny_engine: TinyEngine, monkeypatch: pytest.MonkeyPatch, purpose: str
) -> None:
    """Triton's HTTP server takes numbers alone, and would answer no client."""
    real, thieves, reserved = ports.reserved_ports, list[socket.socket](), list[ports.ListenPorts]()

    @contextmanager
    def reserve_and_lose(hosts: ports.ListenHosts, *asked: int | None) -> Iterator[ports.ListenPorts]:
        with real(hosts, *asked) as chosen:
            if not thieves:
                thieves.append(socket.create_server((hosts.grpc, getattr(chosen, purpose))))
            reserved.append(chosen)
            yield chosen
            reserved.remove(chosen)

    monkeypatch.setattr(ports, "reserved_ports", reserve_and_lose)
    with Server(tiny_engine("llama"), paced(), ServerSettings(host="localhost", start_timeout=60)) as named:
        assert getattr(named.ports, purpose) != thieves[0].getsockname()[1]
        assert reserved == [named.ports]
        for address in (f"http://{named.http_address}", named.grpc_address):
            with Client(address) as client:
                assert client.generate("hello", max_tokens=4).output_tokens == 4
    thieves[0].close()
    assert not reserved
