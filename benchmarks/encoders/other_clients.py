"""Whether other programs work with a served encoder as they are: AIPerf at the gateway, and mteb through the client.

AIPerf (NVIDIA's load generator) sends embeddings requests in OpenAI's and NIM's form and rerank requests in Cohere's.
mteb evaluates the served MiniLM on the data of examples/retrieval, and the same checkpoint in torch. Each has an
environment of its own under .cache/bench, installed the first time (some hundred megabytes).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from benchmarks.encoders.minilm import minilm_checkpoint, minilm_engine
from benchmarks.encoders.peers import sentence_transformers_python
from benchmarks.environments import shared_environment
from benchmarks.figures import Figure, out_option, report
from benchmarks.fixtures import BENCH_DIRECTORY, bench_checkpoint
from benchmarks.gateway_cost import gateway
from build_engines.build import BuildOptions, build_engine
from inflight.deploy.repository.options import DeploymentOptions, EncoderOptions
from inflight.deploy.server.server import Server

AIPERF = "aiperf==0.13.0"
EXAMPLE = Path(__file__).parents[2] / "examples" / "mteb"
_RERANKER = "tiny-bert-rerank"
_CLIENT = Path(__file__).parents[2] / "client"
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
_ENVIRONMENT = {**_OFFLINE, "PYTHONPATH": str(_CLIENT)}
"""Of mteb, which needs the client of this checkout."""


@dataclass(frozen=True)
class Load:
    """A kind of AIPerf's requests, the model that they are for, and the options of their texts."""

    endpoint: str
    model: str
    options: Sequence[str]


_TEXTS = ("--prompt-batch-size", "4", "--isl", "60", "--isl-stddev", "30")
_PASSAGES = ("--rankings-passages-mean", "10", "--rankings-passages-prompt-token-mean", "40")
_NIM = ("--extra-inputs", "input_type:query", "--extra-inputs", "truncate:END")


@click.command(help=__doc__)
@click.option("--requests", default=200, show_default=True, help="Requests of AIPerf for each endpoint.")
@click.option("--concurrency", default=16, show_default=True, help="AIPerf's requests in flight.")
@out_option("encoders_other_clients")
def main(requests: int, concurrency: int, out: Path) -> None:
    engine, reranker = minilm_engine(), _reranker()
    loads = [
        Load("embeddings", engine_name := "minilm", _TEXTS),
        Load("nim_embeddings", engine_name, (*_TEXTS, *_NIM)),
        Load("cohere_rankings", _RERANKER, _PASSAGES),
    ]
    options = DeploymentOptions(encoders=EncoderOptions(rerank=reranker))
    figures: list[Figure] = []
    details: dict[str, Any] = {}
    with Server(engine, options) as server, gateway(server) as front:
        for load in loads:
            export = _aiperf(load, f"http://127.0.0.1:{front.port}", requests, concurrency, out.with_suffix(".files"))
            details[load.endpoint] = export
            figures += _figures(load, export, requests)
        served = _mteb("--server", server.grpc_address)
        through_gateway = _mteb("--server", f"http://127.0.0.1:{front.port}/v1")
    torch = _mteb("--torch", str(minilm_checkpoint().absolute()))
    details["mteb"] = {"served": served, "gateway": through_gateway, "torch": torch}
    for name, scores in (("the served model", served), ("the gateway", through_gateway), ("torch", torch)):
        figures.append(Figure(f"mteb, ndcg@10 of {name}", [scores["main_score"]]))
    worst = max(abs(scores[name] - torch[name]) for scores in (served, through_gateway) for name in torch)
    figures.append(Figure("mteb, largest difference of a score from torch's", [worst], "<= 0.001"))
    report(out, figures, details)


def _reranker() -> Path:
    engine = BENCH_DIRECTORY / f"{_RERANKER}-fp32"
    build_engine(str(bench_checkpoint(_RERANKER)), engine, BuildOptions(precision="fp32", task="rerank"))
    return engine


def _aiperf(load: Load, url: str, requests: int, concurrency: int, work: Path) -> dict[str, Any]:
    """Return AIPerf's own summary. Raises CalledProcessError if it fails, which it does if all requests fail."""
    python = shared_environment("aiperf-venv", [AIPERF])
    directory = work / load.endpoint
    shutil.rmtree(directory, ignore_errors=True)
    command = [
        *(str(python.with_name("aiperf").absolute()), "profile", "--endpoint-type", load.endpoint, "--url", url),
        *("--model", load.model, "--tokenizer", str(minilm_checkpoint().absolute()), *load.options),
        *("--request-count", str(requests), "--concurrency", str(concurrency), "--random-seed", "7"),
        *("--artifact-dir", str(directory.absolute()), "--ui", "none", "--no-gpu-telemetry", "--no-server-metrics"),
    ]
    _run(command, directory.parent)  # in offline mode, it would take the tokenizer's path for a name in the hub's cache
    export: dict[str, Any] = json.loads(next(directory.rglob("profile_export_aiperf.json")).read_text())
    return export


def _figures(load: Load, export: Mapping[str, Any], requests: int) -> list[Figure]:
    def value(name: str, of: str = "avg") -> float:
        return float((export.get(name) or {}).get(of) or 0.0)

    name = f"AIPerf {load.endpoint}"
    return [
        Figure(f"{name}, requests answered / sent", [value("request_count") / requests], ">= 1"),
        Figure(f"{name}, requests with an error", [value("error_request_count")], "<= 0"),
        Figure(f"{name}, requests/s", [value("request_throughput")]),
        Figure(f"{name}, p99 latency", [value("request_latency", "p99")], unit="ms"),
    ]


def _mteb(*side: str) -> dict[str, float]:
    packages = ["--requirement", str(EXAMPLE / "requirements.txt")]
    python = shared_environment("mteb-venv", packages, beside=[sentence_transformers_python()])
    output = _run([str(python.absolute()), str(EXAMPLE / "evaluate.py"), *side], BENCH_DIRECTORY, _ENVIRONMENT)
    scores: dict[str, float] = json.loads(output.splitlines()[-1])
    return scores


def _run(command: Sequence[str], directory: Path, environment: Mapping[str, str] | None = None) -> str:
    directory.mkdir(parents=True, exist_ok=True)
    everything = {**os.environ, **(environment or {})}
    done = subprocess.run(command, cwd=directory, env=everything, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


if __name__ == "__main__":
    main()
