"""Triton, the ensemble and the LLM API's adapter, on the stand-in for tensorrt_llm: what clients get of it.

What the adapter does with each option and each end is in tests/runtime/backends/llmapi.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from build_engines.build import BuildOptions, build_engine
from build_engines.llmapi.arguments import LlmArguments
from inflight.deploy.server.server import Server
from tests.fixtures.crashes import shared_server
from tests.fixtures.engines import TinyCheckpoint
from tests.fixtures.waiting import wait_until
from tests.runtime.backends.llmapi.standin import STANDIN
from tests.serving.model_replies import (
    DIRECT,
    ENSEMBLE,
    MODELS,
    ask,
    ids_of,
    prompt_for,
    refusal,
    text_of,
    whole,
    words,
)
from tests.serving.raw_requests import TIMEOUT, GrpcConnection

PROMPT = "The quick brown fox"
ENDLESS = 60_000
"""Tokens of an answer that no test sees the end of: five minutes of the stand-in's steps."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: TinyCheckpoint) -> Iterator[Server]:
    """Four requests at a time, a step every 5 ms."""
    place = tmp_path_factory.mktemp("engines")
    checkpoint, engine = Path(shutil.copytree(tiny_checkpoint("llama"), place / "tiny-llama")), place / "llmapi"
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 2 * ENDLESS}))
    build_engine(str(checkpoint), engine, BuildOptions("llmapi", settings=LlmArguments(max_batch_size=4)))
    (engine / "checkpoint" / "standin.json").write_text('{"step_seconds": 0.005}')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(STANDIN))
        with shared_server(engine) as running:
            yield running


def told(server: Server, count: int) -> tuple[int, ...]:
    """What the stand-in answers: the prompt's tokens over and over."""
    ids = ids_of(server.engine, PROMPT)
    return tuple(ids[position % len(ids)] for position in range(count))


@pytest.mark.parametrize("model", MODELS)
def test_what_is_streamed_is_what_its_tokens_say(server: Server, model: str) -> None:
    found = ask(server, model, prompt_for(server, model, PROMPT), 60, stream=True)
    expected = told(server, 60)
    assert whole(found, model) == (list(expected) if model == DIRECT else text_of(server.engine, expected))
    assert len(found) > 3
    assert [reply.finish_reason for reply in found] == [None] * (len(found) - 1) + ["length"]


def test_log_probabilities_counts_and_moments_come_along(server: Server) -> None:
    (reply,) = ask(server, ENSEMBLE, PROMPT, 6, return_log_probs=True, return_perf_metrics=True)
    assert reply.tensors["output_log_probs"].tolist() == [[[-0.5] * 6]]
    assert reply.tensors["cum_log_probs"].tolist() == [[-3.0]]
    names = ("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns")
    moments = [reply.number(name) for name in names]
    assert moments == sorted(moments)


def test_words_are_kept_out_and_end_an_answer_as_text(server: Server) -> None:
    (reply,) = ask(server, ENSEMBLE, PROMPT, 12, bad_words=words(" quick"), exclude_input_in_output=True)
    assert "quick" not in reply.text
    found = ask(server, ENSEMBLE, PROMPT, ENDLESS, stream=True, stop_words=words("brown"))
    assert whole(found, ENSEMBLE).rstrip() == "The quick"
    assert found[-1].finish_reason == "stop_word"


def test_what_can_not_be_had_is_refused_in_a_sentence(server: Server) -> None:
    """The engine's own list of inputs is the one that counts."""
    for model, values, said in (
        (DIRECT, {"return_context_logits": True}, "return_context_logits is not supported by the LLM API's engine: "),
        (ENSEMBLE, {"beam_width": 2}, "beam_width is 2, and the engine was built for 1"),
    ):
        error = refusal(server, model, prompt_for(server, model, PROMPT), 4, **values)
        assert said in error
        assert "\n" not in error


def test_a_dead_worker_ends_every_stream_and_the_server_comes_back(server: Server) -> None:
    with GrpcConnection(server.grpc_address) as connection:
        calls = [connection.text(PROMPT, ENDLESS) for _ in range(3)]
        for call in calls:
            call.wait_for(3)
        os.kill(_worker(server), signal.SIGKILL)
        for call in calls:
            assert "[engine_died]" in str(call.finish()[-1].error)

    def ask_again() -> list[Any]:
        with suppress(Exception):
            return ask(server, ENSEMBLE, PROMPT, 3, exclude_input_in_output=True)
        return []

    (reply,) = wait_until(ask_again, "the server to come back", TIMEOUT)
    assert reply.text == text_of(server.engine, told(server, 3))
    assert "TensorRT-LLM has ended: a worker process of the stand-in died" in server.run_directory.log.read_text()


def _worker(server: Server) -> int:
    """The stand-in's process, a child of the engine's."""
    (engine,) = [member for member in server.instance.process_tree if member.name.startswith("the engine's process")]
    (worker,) = Path(f"/proc/{engine.pid}/task/{engine.pid}/children").read_text().split()
    return int(worker)
