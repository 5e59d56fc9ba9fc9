"""Triton, the ensemble and the LLM API's adapter, on the stand-in for tensorrt_llm: what clients get of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from build_engines.build import BuildOptions, build_engine
from build_engines.llmapi.arguments import LlmArguments
from inflight.deploy.server.server import Server
from inflight.runtime.triton.word_tensors import pack
from inflight.text.chat_template import ChatRenderer
from inflight.text.tokenizer import encode, load_tokenizer
from tests.fixtures.crashes import shared_server
from tests.fixtures.engines import TinyCheckpoint
from tests.fixtures.waiting import wait_until
from tests.runtime.backends.llmapi.standin import STANDIN
from tests.serving.model_replies import (
    BLS,
    DIRECT,
    ENSEMBLE,
    TEXT_MODELS,
    ask,
    ids_of,
    prompt_for,
    refusal,
    stream_of,
    text_of,
    whole,
    words,
)
from tests.serving.raw_requests import TIMEOUT, GrpcConnection, request

PROMPT = "The quick brown fox"
ENDLESS = 60_000
"""Tokens of an answer that no test sees the end of: five minutes of the stand-in's steps."""
FAILING = 1000
PLACES = 4


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: TinyCheckpoint) -> Iterator[Server]:
    """PLACES requests at a time, a step every 5 ms."""
    place = tmp_path_factory.mktemp("engines")
    checkpoint, engine = place / "tiny-llama", place / "llmapi"
    shutil.copytree(tiny_checkpoint("llama"), checkpoint)
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 2 * ENDLESS}))
    settings = LlmArguments(max_batch_size=PLACES)
    build_engine(str(checkpoint), engine, BuildOptions("llmapi", settings=settings))
    wishes = {"step_seconds": 0.005, "fail_token": FAILING}
    (engine / "checkpoint" / "standin.json").write_text(json.dumps(wishes))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(STANDIN))
        with shared_server(engine) as running:
            yield running


def told(server: Server, count: int, prompt: str = PROMPT) -> tuple[int, ...]:
    """What the stand-in answers: the prompt's tokens over and over."""
    ids = ids_of(server.engine, prompt)
    return tuple(ids[position % len(ids)] for position in range(count))


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_conversations_are_rendered_and_token_ids_told(server: Server, model: str) -> None:
    chat = [{"role": "user", "content": PROMPT}]
    renderer = ChatRenderer.from_directory(server.engine)
    assert renderer is not None
    ids = encode(load_tokenizer(str(server.engine)), [renderer.render(chat)], add_special_tokens=False)[0]
    sent: dict[str, Any] = {
        "messages": json.dumps(chat),
        "return_token_ids": True,
        "stream": True,
        "min_tokens": len(ids),
    }
    found = ask(server, model, "", len(ids), **sent)
    texts = [reply for reply in found if "text_output" in reply.tensors]
    assert [token_id for reply in texts for token_id in reply.tensors["token_ids"].ravel().tolist()] == ids
    assert texts[-1].number("num_responses") == len(texts)


@pytest.mark.parametrize("model", [*TEXT_MODELS, DIRECT])
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
    (plain,) = ask(server, DIRECT, ids_of(server.engine, PROMPT), 6)
    assert plain.number("num_output_tokens") == 6


def test_several_sequences_have_seeds_of_their_own(server: Server) -> None:
    wild: dict[str, Any] = {
        "num_return_sequences": 3,
        "top_p": 1.0,
        "temperature": 1.0,
        "seed": 7,
        "exclude_input_in_output": True,
    }
    answers = []
    for _ in range(2):
        found = ask(server, DIRECT, ids_of(server.engine, PROMPT), 12, **wild)
        answers.append({reply.number("sequence_index"): tuple(reply.token_ids) for reply in found})
    assert answers[0] == answers[1]
    assert len(set(answers[0].values())) == 3


@pytest.mark.parametrize(
    ("kind", "guide"),
    [("json_schema", '{"type": "object"}'), ("regex", "[A-Z][a-z]+"), ("ebnf_grammar", 'root ::= "yes"')],
)
def test_a_guide_is_handed_to_the_library(server: Server, kind: str, guide: str) -> None:
    (reply,) = ask(
        server,
        DIRECT,
        ids_of(server.engine, PROMPT),
        60,
        guided_decoding_guide_type=kind,
        guided_decoding_guide=guide,
        exclude_input_in_output=True,
    )
    assert bytes(reply.token_ids).decode() == guide
    assert reply.finish_reason == "stop"


def test_words_are_kept_out_and_tokens_favoured(server: Server) -> None:
    ids = ids_of(server.engine, PROMPT)
    bad = pack([[(ids[1],)]])
    (reply,) = ask(server, DIRECT, ids, 3, bad_words_list=bad, exclude_input_in_output=True)
    assert reply.token_ids == [ids[0], ids[1] + 1, ids[2]]
    bias = np.zeros((1, 300), np.float32)
    bias[0, 299] = 4
    (reply,) = ask(server, DIRECT, ids, 3, embedding_bias=bias, exclude_input_in_output=True)
    assert reply.token_ids == [299] * 3
    (reply,) = ask(server, ENSEMBLE, PROMPT, 12, bad_words=words(" quick"), exclude_input_in_output=True)
    assert "quick" not in reply.text


def test_a_stop_word_is_found_in_the_text(server: Server) -> None:
    found = ask(server, ENSEMBLE, PROMPT, ENDLESS, stream=True, stop_words=words("brown"))
    assert whole(found, ENSEMBLE).rstrip() == "The quick"
    assert found[-1].finish_reason == "stop_word"


def test_a_deadline_ends_an_answer(server: Server) -> None:
    found = ask(server, ENSEMBLE, PROMPT, ENDLESS, stream=True, deadline_ms=1500)
    assert found[-1].finish_reason == "deadline"
    assert whole(found, ENSEMBLE)


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_a_client_that_goes_makes_room_and_so_does_a_stop_by_id(server: Server, model: str) -> None:
    with GrpcConnection(server.grpc_address) as connection:
        values = {"text_input": PROMPT, "max_tokens": ENDLESS, "stream": True}
        calls = [connection.send(request(model, values, f"long {number}")) for number in range(PLACES)]
        for call in calls:
            call.wait_for(3)
        waiting = [connection.text(PROMPT, 3) for _ in range(2)]
        calls[0].cancel()
        ids = np.array([ids_of(server.engine, PROMPT)], np.int32)
        stop = {"input_ids": ids, "input_lengths": 1, "request_output_len": 1, "stop": True}
        connection.send(request(DIRECT, stop, "long 1")).finish()
        for call in waiting:
            assert call.finish()[-1].finish_reason == "length"
        assert not calls[2].ended.is_set()
        assert calls[1].finish()[-1].finish_reason == "cancelled"
        for call in calls[2:]:
            call.cancel()


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (DIRECT, {"return_context_logits": True}, "return_context_logits is not supported by the LLM API's engine: "),
    (ENSEMBLE, {"return_generation_logits": True}, "return_generation_logits is not supported by the LLM API's"),
    (BLS, {"lora_task_id": 1}, "lora_task_id is 1, and the deployment has no such adapter"),
    (ENSEMBLE, {"beam_width": 2}, "beam_width is 2, and the engine was built for 1"),
    (ENSEMBLE, {"top_p": 1.5}, "top_p is 1.5; it must be at most 1"),
    (
        DIRECT,
        {"guided_decoding_guide_type": "json_schema", "guided_decoding_guide": "{"},
        "guided_decoding_guide is not a JSON schema",
    ),
]


@pytest.mark.parametrize(("model", "values", "said"), REFUSED)
def test_what_can_not_be_had_is_refused_in_a_sentence(
    server: Server, model: str, values: dict[str, Any], said: str
) -> None:
    error = refusal(server, model, prompt_for(server, model, PROMPT), 4, **values)
    assert said in error
    assert error.endswith(("[unsupported_input]", "[invalid_parameter]")), error
    assert "\n" not in error


def test_a_request_that_the_library_fails_ends_alone(server: Server) -> None:
    *_, reply = stream_of(server, _tokens([FAILING, 5], 9))
    assert reply.error is not None
    assert "the stand-in failed because it was asked to" in reply.error
    assert reply.error.endswith("[invalid_request]")
    assert ask(server, ENSEMBLE, PROMPT, 2)


def _tokens(ids: list[int], count: int) -> Any:
    array = np.array([ids], np.int32)
    return request(
        DIRECT, {"input_ids": array, "input_lengths": len(ids), "request_output_len": count, "streaming": True}
    )


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
