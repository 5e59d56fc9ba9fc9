"""The script that containers start with, run for real: it serves, says what is missing, and hands over."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from inflight.gateway.key_editing import add_key
from inflight.gateway.key_file import ApiKey
from tests.docker.entrypoint_container import ENTRYPOINT, StartedContainer, contained, environment, health
from tests.fixtures.engines import TinyEngine
from tests.fixtures.open_streams import TIMEOUT, open_streams

needs_no_gpu = pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a GPU")


def start(home: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the script to its end, outside of namespaces."""
    command = [str(ENTRYPOINT), *arguments]
    return subprocess.run(
        command, env=environment(home, **variables), capture_output=True, text=True, timeout=2 * TIMEOUT
    )


def refusal(finished: subprocess.CompletedProcess[str]) -> str:
    """The one sentence that it ended with."""
    assert finished.returncode == 1, finished
    assert finished.stdout == ""
    assert finished.stderr.startswith("Error: ")
    assert finished.stderr.count("\n") == 1
    return finished.stderr.strip()


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_it_is_a_script_of_any_shell(shell: str) -> None:
    subprocess.run([shell, "-n", str(ENTRYPOINT)], check=True)
    assert os.access(ENTRYPOINT, os.X_OK)


@pytest.fixture
def container(tiny_engine: TinyEngine, tmp_path: Path) -> Iterator[StartedContainer]:
    started = StartedContainer(tiny_engine("llama"), tmp_path / "home", "--drain-seconds", str(2 * TIMEOUT))
    yield started
    started.end()


def test_a_container_serves_is_healthy_and_drains_on_sigterm(container: StartedContainer) -> None:
    """Process 1, on a root file system that can't be written."""
    assert container.announcement["model"] == "tiny-llama"
    with socket.create_connection(("127.0.0.2", int(container.http_port)), timeout=TIMEOUT):
        pass  # it listens on all addresses, since a container's own is not known
    assert health(container.http_port).returncode == 0

    streams = open_streams(container.announcement["grpc"], count=4, max_tokens=1000)
    container.first.send_signal(signal.SIGTERM)
    _, said = container.outer.communicate(timeout=3 * TIMEOUT)
    assert container.outer.returncode == 0, said
    assert "running requests have" in said
    for stream in streams:
        assert stream.finished.wait(TIMEOUT)
        assert stream.completed, stream
    gone = health(container.http_port)
    assert (gone.returncode, gone.stderr) == (1, f"Unhealthy: nothing is ready at 127.0.0.1:{container.http_port}.\n")


def test_with_api_keys_the_gateway_is_open_and_triton_is_not(tiny_engine: TinyEngine, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    key = add_key(path, ApiKey.new("app"))
    started = StartedContainer(tiny_engine("llama"), tmp_path / "home", INFLIGHT_SERVE_KEY_FILE=str(path))
    try:
        port = int(started.announcement["openai"].rpartition(":")[2].removesuffix("/v1"))
        connection = http.client.HTTPConnection("127.0.0.2", port, timeout=TIMEOUT)
        statuses = []
        for headers in ({}, {"authorization": f"Bearer {key}"}):
            connection.request("GET", "/v1/models", headers=headers)
            response = connection.getresponse()
            response.read()
            statuses.append(response.status)
        connection.close()
        assert statuses == [401, 200]
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", int(started.http_port)), timeout=TIMEOUT)
        metrics = int(started.announcement["metrics"].rpartition(":")[2])
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", metrics), timeout=TIMEOUT)
    finally:
        started.end()


def test_another_command_runs_instead(tmp_path: Path) -> None:
    finished = start(tmp_path / "home", "inflight", "--version")
    assert (finished.returncode, finished.stdout.split()[0]) == (0, "inflight,")
    assert start(tmp_path / "home", "sh", "-c", "exit 7").returncode == 7


def test_options_go_to_serve(tmp_path: Path, tiny_engine: TinyEngine) -> None:
    engine = str(tiny_engine("llama"))
    finished = start(tmp_path / "home", "--drain-seconds", "soon", INFLIGHT_ENGINE=engine)
    assert finished.returncode == 2
    assert "--drain-seconds" in finished.stderr


def test_help_takes_no_engine(tmp_path: Path) -> None:
    finished = start(tmp_path / "home", "--max-queue-size", "8", "--help", INFLIGHT_ENGINE=str(tmp_path / "none"))
    assert finished.returncode == 0
    assert "--max-queue-size" in finished.stdout


def test_no_engine_is_mounted(tmp_path: Path) -> None:
    said = refusal(start(tmp_path / "home", INFLIGHT_ENGINE=str(tmp_path / "none")))
    assert f"no engine directory at {tmp_path / 'none'}; mount one" in said
    assert said.endswith("[engine_not_found]")


def test_docker_makes_an_empty_directory_of_a_wrong_path(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    said = refusal(start(tmp_path / "home", INFLIGHT_ENGINE=str(tmp_path / "empty")))
    assert f"{tmp_path / 'empty'} is empty; mount one that `inflight build` made" in said


def test_what_is_mounted_is_no_engine(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "config.json").write_text("{}")
    said = refusal(start(tmp_path / "home", INFLIGHT_ENGINE=str(tmp_path / "checkpoint")))
    assert "engine.json" in said
    assert said.endswith("[engine_not_found]")


def test_a_damaged_engine_is_refused_by_serve(tmp_path: Path, tiny_engine: TinyEngine) -> None:
    engine = tmp_path / "engine"
    shutil.copytree(tiny_engine("llama"), engine)
    (engine / "openvino_model.bin").write_bytes(b"short")
    said = refusal(start(tmp_path / "home", INFLIGHT_ENGINE=str(engine)))
    assert "openvino_model.bin" in said
    assert said.endswith("[engine_damaged]")


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that other users may reach, as none of pytest's own."""
    with tempfile.TemporaryDirectory(prefix="inflight-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize("closed", ["", "engine.json"])
def test_an_engine_that_others_may_not_read(tmp_path: Path, public: Path, closed: str) -> None:
    """As when it was made by root with a umask of 077, and the container's user is another."""
    engine = public / "engine"
    engine.mkdir()
    (engine / "engine.json").write_text("{}")
    target = engine / closed if closed else engine
    target.chmod(0)
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.getuid() == 0 else []
    finished = subprocess.run(
        [*nobody, "sh", "-s"],
        input=ENTRYPOINT.read_text(),  # its own path may be closed to others too
        env=environment(tmp_path / "home", INFLIGHT_ENGINE=str(engine)),
        cwd="/",
        capture_output=True,
        text=True,
    )
    target.chmod(0o755)
    assert f"may not read {target}; say chmod -R a+rX" in refusal(finished)


def test_what_lies_at_the_root_of_a_disk_is_no_matter(tmp_path: Path, public: Path) -> None:
    """What only root may read there, and a link that leads nowhere; the engine itself is checked."""
    (public / "lost+found").mkdir(mode=0o700)
    (public / "link").symlink_to("nowhere")
    (public / "config.json").write_text("{}")
    assert "engine.json" in refusal(start(tmp_path / "home", INFLIGHT_ENGINE=str(public)))
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.getuid() == 0 else []
    finished = subprocess.run(
        [*nobody, "sh", "-s"],
        input=ENTRYPOINT.read_text(),
        env=environment(tmp_path / "home", INFLIGHT_ENGINE=str(public)),
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert "may not read" not in finished.stderr


def test_a_container_of_which_nobody_says_who_reaches_it(tmp_path: Path, tiny_engine: TinyEngine) -> None:
    home, engine = tmp_path / "home", str(tiny_engine("llama"))
    command = contained()
    open_to_all = environment(home, INFLIGHT_ENGINE=engine, INFLIGHT_SERVE_BEHIND_PROXY="0")
    finished = subprocess.run(command, env=open_to_all, capture_output=True, text=True, timeout=2 * TIMEOUT)
    assert "[invalid_parameter]" in refusal(finished)


@needs_no_gpu
@pytest.mark.parametrize("target", ["tensorrt-llm", "llmapi"])
def test_an_engine_for_gpus_where_there_is_none(tmp_path: Path, target: str) -> None:
    engine = tmp_path / "engine"
    engine.mkdir()
    (engine / "engine.json").write_text(json.dumps({"format": 1, "target": target}, indent=2))
    said = refusal(start(tmp_path / "home", INFLIGHT_ENGINE=str(engine)))
    assert "this container has no GPU; start it with --gpus all" in said


def test_too_little_shared_memory(tmp_path: Path, tiny_engine: TinyEngine) -> None:
    """Docker gives a container 64 MiB if nothing is said."""
    finished = subprocess.run(
        contained(shm_size="64m"),
        env=environment(tmp_path / "home", INFLIGHT_ENGINE=str(tiny_engine("llama"))),
        capture_output=True,
        text=True,
    )
    assert "/dev/shm has 64 MiB free and serving takes 256" in refusal(finished)


@pytest.mark.parametrize(
    ("options", "why", "remedy"),
    [
        ({"run_options": "mode=1777,noexec"}, "which is mounted noexec", "--tmpfs {home}:exec,mode=1777"),
        ({"run_options": "mode=1777,ro"}, "can't write to {home}", "--tmpfs {home}:exec,mode=1777"),
        ({"tmp_mode": "ro"}, "can't write to /tmp", "--tmpfs /tmp"),
    ],
)
def test_places_that_are_of_no_use(
    tmp_path: Path, tiny_engine: TinyEngine, options: dict[str, str], why: str, remedy: str
) -> None:
    """Docker mounts a tmpfs noexec if nothing is said."""
    home = tmp_path / "home"
    finished = subprocess.run(
        contained(**options),
        env=environment(home, INFLIGHT_ENGINE=str(tiny_engine("llama"))),
        capture_output=True,
        text=True,
    )
    said = refusal(finished)
    assert why.format(home=home) in said
    assert remedy.format(home=home) in said


def test_an_address_of_an_engine_is_handed_on_as_it_is(tmp_path: Path) -> None:
    """To the first `inflight` on PATH, here one that says what it was given."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "inflight").write_text('#!/bin/sh\necho "$INFLIGHT_SERVE_HOST" "$@"\n')
    (programs / "inflight").chmod(0o755)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    finished = start(tmp_path / "home", "--verbose", INFLIGHT_ENGINE="s3://bucket/engine", PATH=path)
    assert finished.stdout == "0.0.0.0 serve s3://bucket/engine --verbose\n", finished.stderr
