"""`inflight status` reports the state of a real server, and that there is no server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import ExitStack

import pytest
from inflight_client import Client
from inflight_client.engine_load import EngineLoad
from inflight_client.metrics import Metrics

import inflight
from inflight.commands.status.report import EngineIdentity
from inflight.deploy.server.server import Server
from tests.client.support.leak_checks import idle
from tests.fixtures.command_runner import CommandRunner
from tests.serving.metrics_page import page_when

MODELS = ["ensemble", "postprocessing", "preprocessing", "tensorrt_llm", "tensorrt_llm_bls"]


def at(server: Server) -> tuple[str, ...]:
    return ("--server", server.grpc_address)


def test_a_server_at_rest(status: CommandRunner, paced_server: Server) -> None:
    page_when(paced_server, idle)
    done = status(*at(paced_server))
    assert done.code == 0
    lines = dict(line.split(maxsplit=1) for line in done.out.splitlines())
    assert lines["ready"] == f"grpc://{paced_server.grpc_address}"
    version = inflight.__version__
    assert lines["deployment"] == f"inflight {version}, engine fake built by {version}; text goes to ensemble"
    assert lines["model"] == "tiny-llama"
    assert lines["server"].startswith("triton 2.")
    assert lines["models"] == f"{', '.join(MODELS)}: READY"
    assert lines["requests"] == "0 of 64 in flight, 0 waiting"
    assert "WARNING" not in lines


def test_a_busy_server_over_http_as_json(status: CommandRunner, paced_server: Server) -> None:
    with Client(paced_server.grpc_address) as client, ExitStack() as streams:
        for _ in range(3):
            next(streams.enter_context(client.stream("one two three", max_tokens=2000)))
        page_when(paced_server, lambda page: page.requests["scheduled"] == 3)
        done = status("--json", "--server", f"http://{paced_server.http_address}")
    report = json.loads(done.out)
    assert done.code == 0
    assert report["ready"] is True
    assert report["deployment"]["kind"] == "inflight"
    assert report["deployment"]["engine_version"] == inflight.__version__
    assert sorted(model["name"] for model in report["models"]) == MODELS
    assert (report["load"]["running"], report["load"]["waiting"]) == (3, 0)
    assert 0 < report["load"]["kv_cache_use"] <= 1
    # 3 tokens a step, and at the most 50 steps a second
    assert 0 < report["load"]["tokens_per_second"] < 200
    assert report["failures"] == []


def test_encoders_are_listed_beside_an_engine_and_alone(
    status: CommandRunner, encoder_server: Server, mixed_server: Server
) -> None:
    beside, alone = (status(*at(server)) for server in (mixed_server, encoder_server))
    assert (beside.code, alone.code) == (0, 0)
    for done in (beside, alone):
        assert (
            "encoder     tiny-bert-embed: embed, 64 dimensions, texts of up to 512 tokens, texts go to embedding"
            in (done.out.splitlines())
        )
    assert "model       tiny-llama" in beside.out.splitlines()
    assert "unknown" not in alone.out
    report = json.loads(status("--json", *at(encoder_server)).out)
    assert report["deployment"] is None
    assert [one["task"] for one in report["encoders"]] == ["embed", "rerank", "classify"]
    assert report["failures"] == []


def test_metrics_out_of_reach_are_unknown_and_nothing_worse(status: CommandRunner, paced_server: Server) -> None:
    done = status("--server", paced_server.grpc_address, "--metrics-url", "http://127.0.0.1:1/metrics")
    assert done.code == 0
    assert "unknown     no server answers at http://127.0.0.1:1/metrics" in done.out
    assert "requests" not in done.out


@pytest.mark.parametrize("address", ["127.0.0.1:1", "http://127.0.0.1:1", "nowhere.invalid:1"])
def test_nobody_there_is_one_line_and_exit_code_1(status: CommandRunner, address: str) -> None:
    done = status("--server", address)
    assert (done.code, done.err) == (1, "")
    assert done.out.startswith("NOT READY ")
    assert done.out.count("\n") == 1
    done = status("--server", address, "--json")
    assert done.code == 1
    report = json.loads(done.out)
    assert report["ready"] is False
    assert report["health"]["reason"]
    assert report["load"] is None


def test_a_model_that_is_not_there_is_not_ready(status: CommandRunner, paced_server: Server) -> None:
    done = status(*at(paced_server), "--model", "nothing")
    assert done.code == 1
    assert done.out.startswith("NOT READY ")
    assert "nothing" in done.out.splitlines()[0]
    assert "READY" in done.out.splitlines()[2]


def test_versions_that_do_not_fit_are_told(
    status: CommandRunner, paced_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployed = inflight.__version__
    monkeypatch.setattr(inflight, "__version__", "9.9.9")
    done = status(*at(paced_server))
    assert done.code == 0
    assert f"WARNING     the server was deployed by inflight {deployed}, which this client of 9.9.9" in done.out
    assert "9.9.9" in json.loads(status(*at(paced_server), "--json").out)["warning"]


@pytest.mark.parametrize(
    ("built", "deployed", "told"),
    [("0.1.0", "0.1.3", False), ("0.1.0", "0.2.0", True), ("", "0.2.0", False), ("0.1.0", None, False)],
)
def test_an_engine_of_another_version_than_its_server_is_told(built: str, deployed: str | None, told: bool) -> None:
    sentence = EngineIdentity("openvino", built).mismatch(deployed)
    assert bool(sentence) is told
    if told:
        assert sentence.startswith("the engine was built by inflight 0.1.0, and the server was deployed by 0.2.0")


def test_watching_goes_on_until_ctrl_c(paced_server: Server) -> None:
    program = "from inflight.cli import main; main()"
    command = [sys.executable, "-c", program, "status", *at(paced_server), "--watch", "0.1", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(3):
            assert json.loads(process.stdout.readline())["ready"] is True
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    assert (process.returncode, told) == (0, "")


PAGE = """\
# TYPE nv_trt_llm_request_metrics gauge
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"} 3
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 2
nv_trt_llm_request_metrics{model="another",request_type="scheduled",version="1"} 1
# TYPE nv_trt_llm_kv_cache_block_metrics gauge
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="tensorrt_llm",version="1"} 0.25
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="reused",model="tensorrt_llm",version="1"} Nan
# TYPE nv_trt_llm_inflight_batcher_metrics gauge
nv_trt_llm_inflight_batcher_metrics{inflight_batcher_specific_metric="generation_requests",model="tensorrt_llm"} 4
# TYPE nv_trt_llm_general_metrics gauge
nv_trt_llm_general_metrics{general_type="iteration_counter",model="tensorrt_llm",version="1"} %d
nv_trt_llm_general_metrics{general_type="iteration_counter",model="another",version="1"} 5
"""


def test_the_load_of_all_engines_on_a_page() -> None:
    load = EngineLoad.from_metrics(Metrics.parse(PAGE % 100))
    assert (load.running, load.waiting, load.capacity) == (4, 2, None)
    assert (load.kv_cache_use, load.kv_cache_tokens) == (0.25, None)
    assert EngineLoad.from_metrics(Metrics.parse("")).running is None


@pytest.mark.parametrize(("steps", "speed"), [(150, 100.0), (100, 0.0), (7, 0.0)])
def test_the_speed_is_steps_times_who_gets_a_token_in_each(steps: int, speed: float) -> None:
    before = EngineLoad.from_metrics(Metrics.parse(PAGE % 100), at=10.0)
    assert EngineLoad.from_metrics(Metrics.parse(PAGE % steps), at=12.0).tokens_per_second(before) == speed
