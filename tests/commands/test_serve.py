from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest
from inflight_client import Client

from build_engines.errors import BuildError
from build_engines.model_cache.cache import ModelCache
from inflight.deploy.server.run_directory import SHARED_MEMORY_DIRECTORY, remove_stale_run_directories
from tests.fixtures.command_runner import CommandRunner
from tests.fixtures.encoders import TinyEncoder
from tests.fixtures.engines import ROOT, TinyCheckpoint, TinyEngine
from tests.fixtures.errors import raises
from tests.fixtures.hub import NAME, Hub, HubModelFiles
from tests.fixtures.open_streams import TIMEOUT, open_streams, still_running
from tests.fixtures.server import ENDLESS

MAIN = "from inflight.cli import main; main()"
# The command has no option for the fake engine, which operators have no use for.
PACED_MAIN = """
from inflight.cli import main
from inflight.commands.options import deployment
from tests.fixtures.server import paced
deployment.DeploymentOptions = lambda **options: paced()
main()
"""
ANY_PORTS = ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]


class ServeProcess:
    """A running `inflight serve --json`: its process and the line that it printed."""

    def __init__(
        self, main: str, arguments: list[str], home: Path, environment: Mapping[str, str] = os.environ
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", main, "serve", *arguments, "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**environment, "INFLIGHT_RUN_DIR": str(home)},
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        self.announcement: dict[str, Any] = json.loads(line)
        self.family = psutil.Process(self.process.pid).children(recursive=True)
        owner = next(home.glob("run-*/owner.json"))
        self.shm_prefix = json.loads(owner.read_text())["shm_prefix"]

    def regions(self) -> list[Path]:
        return list(SHARED_MEMORY_DIRECTORY.glob(f"{self.shm_prefix}*"))


Serve = Callable[..., ServeProcess]


@pytest.fixture
def serve(tiny_engine: TinyEngine, tmp_path: Path) -> Iterator[Serve]:
    """`serve()`: start the command on the tiny Llama with any free ports, and wait until it says where it listens."""
    started: list[ServeProcess] = []

    def start(
        *arguments: str, main: str = MAIN, model: str | None = None, environment: Mapping[str, str] = os.environ
    ) -> ServeProcess:
        models = [str(tiny_engine("llama")) if model is None else model] if model != "" else []
        started.append(ServeProcess(main, [*models, *ANY_PORTS, *arguments], tmp_path / "home", environment))
        return started[-1]

    yield start
    for serving in started:
        if serving.process.poll() is None:
            serving.process.kill()
        serving.process.communicate()
    still_running([process for serving in started for process in serving.family])
    remove_stale_run_directories(tmp_path / "home")


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_lets_running_requests_finish_and_ends_with_0(serve: Serve, number: int, tmp_path: Path) -> None:
    serving = serve("--drain-seconds", "200", main=PACED_MAIN)
    streams = open_streams(serving.announcement["grpc"], count=8, max_tokens=100)
    serving.process.send_signal(number)
    for stream in streams:
        assert stream.finished.wait(TIMEOUT)
        assert stream.completed, stream
    assert serving.process.wait(TIMEOUT) == 0
    assert still_running(serving.family) == []
    assert serving.regions() == []
    assert list((tmp_path / "home").iterdir()) == []


def test_a_second_signal_stops_at_once(serve: Serve) -> None:
    serving = serve("--drain-seconds", "200", main=PACED_MAIN)
    [stream] = open_streams(serving.announcement["grpc"], count=1, max_tokens=ENDLESS)
    serving.process.send_signal(signal.SIGTERM)
    assert serving.process.stderr is not None
    # Before it may be what Triton says of a port that another program took meanwhile.
    stopping = re.compile(r"[0-9-]{10} [0-9:]{8} Stopping; running requests have 200 s to finish\.")  # with its time
    assert any(map(stopping.match, serving.process.stderr))
    serving.process.send_signal(signal.SIGTERM)
    _, errors = serving.process.communicate(timeout=TIMEOUT)
    assert serving.process.returncode == 0
    assert stream.finished.wait(TIMEOUT)
    assert "Stopped before all requests had ended." in errors
    assert "Traceback" not in errors


@pytest.mark.slow  # what the next one does too, and then starts another server
def test_a_file_of_options_can_name_encoders_alone(serve: Serve, tiny_encoder: TinyEncoder, tmp_path: Path) -> None:
    (tmp_path / "rerank").symlink_to(tiny_encoder("rerank"))
    (tmp_path / "serve.yaml").write_text(f"embed: {tiny_encoder('embed')}\nrerank: rerank\ngateway: false\n")
    serving = serve("--config", str(tmp_path / "serve.yaml"), model="")
    assert serving.announcement["models"] == {"embed": "tiny-bert-embed", "rerank": "tiny-bert-rerank"}
    with Client(serving.announcement["grpc"]) as client:
        assert len(client.rerank("tea", ["one", "two"]).scores) == 2


def test_a_killed_servers_rest_is_swept_by_the_next_which_serves_what_it_was_asked_for_and_outlives_no_supervisor(
    serve: Serve, tmp_path: Path
) -> None:
    first = serve()
    guard = next(process for process in first.family if process.ppid() == first.process.pid)
    first.process.kill()
    guard.kill()
    first.process.wait()
    assert still_running(first.family) == []
    (tmp_path / "serve.yaml").write_text("kv-cache-tokens: 32768\n")
    second = serve("--config", str(tmp_path / "serve.yaml"))
    assert first.regions() == []
    assert len(list((tmp_path / "home").glob("run-*"))) == 1
    assert second.announcement["kv_cache_tokens"] == 32768
    assert psutil.Process(second.announcement["pid"]).name() == "tritonserver"
    with Client(second.announcement["grpc"]) as client:
        assert client.generate("hello", max_tokens=2).output_tokens == 2
    assert len(second.family) >= 5
    second.process.kill()
    assert still_running(second.family) == []
    assert second.regions() == []


def run_serve(*arguments: str, home: Path, main: str = MAIN) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", main, "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=2 * TIMEOUT,
        env={**os.environ, "INFLIGHT_RUN_DIR": str(home)},
    )


@pytest.fixture
def refused(
    runner_of: Callable[[str], CommandRunner], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> CommandRunner:
    """`refused("nothing")`: the command in this process, for what is refused before anything is begun."""
    monkeypatch.setenv("INFLIGHT_RUN_DIR", str(tmp_path / "home"))
    return runner_of("serve")


def test_a_busy_port_is_one_sentence_before_anything_is_begun(
    tiny_engine: TinyEngine, refused: CommandRunner, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        others = ["--grpc-port", "0", "--metrics-port", "0"]
        done = refused(str(tiny_engine("llama")), "--http-port", port, *others)
    assert done.code == 1
    last = done.err.splitlines()[-1]
    assert last == (
        f"Error: --http-port {port} is in use on 127.0.0.1; choose another port, or 0 for any free one. [port_in_use]"
    )
    assert not (tmp_path / "home").exists()


def test_a_missing_engine_is_one_sentence(tmp_path: Path) -> None:
    done = run_serve(str(tmp_path / "nothing"), *ANY_PORTS, home=tmp_path / "home")
    assert done.returncode == 1
    assert f"There is no directory {tmp_path / 'nothing'}" in done.stderr
    assert done.stderr.endswith("[engine_not_found]\n")


def test_a_checkpoint_that_can_not_be_built_is_one_sentence(
    refused: CommandRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFLIGHT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "config.json").write_text("{}")
    done = refused(str(tmp_path), *ANY_PORTS)
    assert done.code == 1
    assert done.err.splitlines()[-1].endswith("[not_a_checkpoint]")
    assert not (tmp_path / "home").exists()


def test_a_models_name_is_enough(serve: Serve, hub: Hub, tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    hub.models[NAME] = HubModelFiles(tiny_checkpoint("llama"))
    environment = hub.environment(tmp_path)
    environment["INFLIGHT_SERVE_GATEWAY"] = "1"
    first = serve("--port", "0", model=NAME, environment=environment)
    assert first.announcement["model"] == NAME
    with openai.OpenAI(base_url=first.announcement["openai"], api_key="none", max_retries=10) as applications:
        done = applications.completions.create(model=NAME, prompt="hello", max_tokens=2)
        assert (done.model, [each.id for each in applications.models.list()]) == (NAME, [NAME])
    with Client(first.announcement["grpc"]) as client:
        assert client.generate("hello", max_tokens=2).output_tokens == 2
        assert client.deployment().served["model"] == NAME
    cache = ModelCache(tmp_path / "engines")
    [entry] = cache.entries()
    with raises(BuildError, "engine_in_use", naming=NAME):
        cache.remove(entry)
    hub.models.clear()
    again = serve(
        "--served-model-name", "tea", "--no-gateway", model=NAME, environment={**environment, "HF_HUB_OFFLINE": "1"}
    )
    assert again.announcement["model"] == "tea"
    with Client(again.announcement["grpc"]) as client:
        assert client.deployment().served["model"] == "tea"
    for serving in (first, again):
        serving.process.terminate()
        assert serving.process.wait(TIMEOUT) == 0
    cache.remove(entry)


def test_an_openvino_model_of_the_hub_is_served_without_the_libraries_of_a_build(
    serve: Serve, hub: Hub, exported_llama: Path, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nsys.modules |= dict.fromkeys(['torch', 'transformers', 'optimum', 'nncf'])\n"
    )
    hub.models[NAME] = HubModelFiles(exported_llama)
    environment = hub.environment(tmp_path)
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *sys.path])
    importing = subprocess.run([sys.executable, "-c", "import torch"], env=environment, capture_output=True)
    assert importing.returncode, "every process of the server is without them"
    serving = serve(model=NAME, environment=environment)
    with Client(serving.announcement["grpc"]) as client:
        assert client.generate("hello", max_tokens=2).output_tokens == 2
    [entry] = ModelCache(tmp_path / "engines").entries()
    assert (entry.record.name, entry.precision) == (NAME, "fp32")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--lora", "nothing.safetensors"], "There is no LoRA adapter at nothing.safetensors"),
        (["--draft-engine", "nothing"], "No engine directory at nothing"),
        (["--num-draft-tokens", "4"], "A number of draft tokens (4) was given without a draft engine or prompt lookup"),
    ],
)
def test_an_option_that_can_not_be_used_is_one_sentence_before_anything_is_begun(
    tiny_engine: TinyEngine, refused: CommandRunner, tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    done = refused(str(tiny_engine("llama")), *ANY_PORTS, *arguments)
    assert done.code == 1
    assert done.err.splitlines()[-1].startswith(f"Error: {sentence}")
    assert not (tmp_path / "home").exists()


def test_what_the_machine_refuses_is_one_sentence(tiny_engine: TinyEngine, tmp_path: Path) -> None:
    # A variable of more than 128 KiB, and no process can be started any more.
    program = f"import os; os.environ['LONG'] = 'x' * 200_000; {MAIN}"
    done = run_serve(str(tiny_engine("llama")), *ANY_PORTS, home=tmp_path / "home", main=program)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        "Error: The machine lacks a resource that the server needs to start: [Errno 7] Argument list too long"
    )
    assert last.endswith("[server_start_failed]")


def test_a_damaged_engine_is_never_loaded(tiny_engine: TinyEngine, refused: CommandRunner, tmp_path: Path) -> None:
    engine = tmp_path / "engine"
    engine.mkdir()
    for path in tiny_engine("llama").iterdir():
        (engine / path.name).write_bytes(path.read_bytes())
    with (engine / "openvino_model.bin").open("r+b") as file:
        file.seek(100)
        file.write(b"garbage")
    done = refused(str(engine), *ANY_PORTS)
    assert done.code == 1
    assert "openvino_model.bin has another content than its manifest says" in done.err
    assert done.err.endswith("[engine_damaged]\n")
