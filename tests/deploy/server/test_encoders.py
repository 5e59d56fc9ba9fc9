"""Servers with encoders: ready, live, restarted and drained like those that generate."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from inflight_client import Client

from build_engines.manifest import EncoderManifest
from inflight.deploy.publish.publish import publish_repository
from inflight.deploy.repository.assemble import AssemblyRequest
from inflight.deploy.repository.engine_set import EngineSet
from inflight.deploy.repository.options import DeploymentOptions, EncoderOptions
from inflight.deploy.server.liveness import LivenessTimeouts
from inflight.deploy.server.server import Server, ServerSettings
from tests.fixtures.encoders import TinyEncoder
from tests.fixtures.waiting import TIMEOUT, wait_until

SHORT = LivenessTimeouts(check_interval=0.2, idle_before_probe=0.6, probe_timeout=2.5)
LONG_TEXT = "word " * 400


def infer(server: Server, model: str, **inputs: Any) -> dict[str, Any]:
    """Send strings to a model over HTTP; return its outputs as flat lists, by name."""
    batched = model != "rerank"
    body = {
        "inputs": [
            {"name": name, "datatype": "BYTES", "shape": [len(texts), 1] if batched else [len(texts)], "data": texts}
            for name, texts in inputs.items()
        ]
    }
    url = f"http://{server.http_address}/v2/models/{model}/infer"
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
        return {output["name"]: output["data"] for output in json.load(response)["outputs"]}


def stubs(server: Server) -> set[str]:
    return {member.name for member in server.instance.process_tree if member.name.startswith("the stub of ")}


def test_encoders_alone_are_served_without_the_models_that_generate(encoder_server: Server) -> None:
    assert stubs(encoder_server) == {f"the stub of {model}" for model in ("embedding", "rerank", "classify")}
    assert encoder_server.kv_cache_tokens is None
    embedding = infer(encoder_server, "embedding", text_input=["tea", "coffee"])["embedding"]
    embed, classify = (encoder_server.engines.encoders[task] for task in ("embed", "classify"))
    assert isinstance(embed, EncoderManifest)
    assert isinstance(classify, EncoderManifest)
    assert len(embedding) == 2 * embed.dimensions
    assert len(infer(encoder_server, "rerank", query=["tea"], documents=["a", "b", "c"])["scores"]) == 3
    assert infer(encoder_server, "classify", text_input=["tea"])["labels"] == list(classify.labels)


def test_encoders_beside_an_engine_answer_as_they_do_alone(encoder_server: Server, mixed_server: Server) -> None:
    with Client(mixed_server.grpc_address) as client:
        assert client.generate("hello", max_tokens=3).output_tokens == 3
    alone, beside = (infer(one, "embedding", text_input=["tea"])["embedding"] for one in (encoder_server, mixed_server))
    assert beside == pytest.approx(alone, abs=1e-6)
    assert mixed_server.manifest.name == mixed_server.model_name == "tiny-llama"


@pytest.mark.slow
def test_an_encoder_that_dies_or_hangs_is_started_again_and_not_one_that_is_idle_or_busy(
    tiny_encoder: TinyEncoder,
) -> None:
    reports: list[str] = []
    seconds = SHORT.idle_before_probe + SHORT.probe_timeout + 1
    options = DeploymentOptions(encoders=EncoderOptions(rerank=tiny_encoder("rerank")))
    settings = ServerSettings(liveness=SHORT)
    with Server(tiny_encoder("embed"), options, settings, on_message=reports.append) as server:
        over = threading.Event()
        busy = threading.Thread(target=keep_busy, args=(server, over))
        busy.start()
        probe, since = server.instance.probe, time.monotonic()
        before = probe.answer_count("rerank")
        assert before is not None
        wait_until(lambda: time.monotonic() - since > seconds and (probe.answer_count("rerank") or 0) > before)
        assert (server.restarts, server.ready) == (0, True)

        os.kill(stub(server, "rerank"), signal.SIGSTOP)
        wait_until(lambda: server.restarts == 1 and server.ready)
        assert any("its model rerank has answered nothing" in line for line in reports), reports
        over.set()
        busy.join()

        os.kill(stub(server, "rerank"), signal.SIGKILL)
        wait_until(lambda: server.restarts == 2 and server.ready)
        assert any(line.startswith("the stub of rerank") for line in reports), reports
        assert len(infer(server, "rerank", query=["tea"], documents=["a"])["scores"]) == 1


def test_a_drain_waits_for_open_requests_and_refuses_new_ones(tiny_encoder: TinyEncoder) -> None:
    answers: list[int] = []
    with Server(tiny_encoder("embed")) as server:
        probe = server.instance.probe
        before = probe.answer_count("embed") or 0
        work = threading.Thread(
            target=lambda: answers.append(len(infer(server, "embedding", text_input=[LONG_TEXT] * 256)["error"]))
        )
        work.start()
        wait_until(lambda: (probe.answer_count("embed") or 0) > before)  # some of its texts are computed
        refused: list[int] = []
        late = threading.Thread(target=lambda: refused.append(refusal(server)))
        late.start()
        assert server.stop(drain_seconds=TIMEOUT)
        work.join()
        late.join()
    assert answers == [256]
    assert refused[0] >= 400


def test_an_assembled_repository_with_encoders_is_served(
    tiny_encoder: TinyEncoder, encoder_server: Server, tmp_path: Path
) -> None:
    options = DeploymentOptions(encoders=EncoderOptions(classify=tiny_encoder("classify")))
    engines = EngineSet.find(tiny_encoder("embed"), options)
    publish_repository(AssemblyRequest(engines, options, vendored=True), tmp_path / "out", lambda line: None)
    with Server(tmp_path / "out") as server:
        assert stubs(server) == {"the stub of embedding", "the stub of classify"}
        for model in ("embedding", "classify"):
            here, there = (infer(one, model, text_input=["tea"]) for one in (server, encoder_server))
            assert here["num_input_tokens"] == there["num_input_tokens"]


def stub(server: Server, model: str) -> int:
    return next(one.pid for one in server.instance.process_tree if one.name == f"the stub of {model}")


def keep_busy(server: Server, over: threading.Event) -> None:
    while not over.is_set():
        try:
            infer(server, "embedding", text_input=[LONG_TEXT] * 16)
        except (OSError, RuntimeError):  # during a restart
            time.sleep(0.05)


def refusal(server: Server) -> int:
    """Send requests until one is refused; return its status."""
    while True:
        try:
            infer(server, "embedding", text_input=["tea"])
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 503
