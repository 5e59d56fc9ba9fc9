"""`tensorrt_llm_bls` says what the ensemble says, whichever way it is asked, and some things that only it can."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from inflight.deploy.repository import DeploymentOptions
from inflight.deploy.server import Server
from tests.fixtures.engines import TinyEngine
from tests.fixtures.server import STEP_SECONDS, fake_engine
from tests.serving.streams import Call, Grpc, Response, generate, generate_stream, request

pytestmark = pytest.mark.slow  # some of these do not pass yet: what they ask for is being built

BLS = "tensorrt_llm_bls"
PROMPTS = [
    "The quick brown fox jumps over the lazy dog.",
    "抹茶ラテは京都の宇治から。",
    "Tea 🍵, cake 🍰, a family 👩‍👩‍👧‍👦, thumbs 👍🏽 and ❤️‍🔥",
]
FIGURES = {"arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns"}
Told = tuple[str, str | None, int, int]
SERVERS = ["paced_server", "demo_server", "foreign_server"]


@pytest.fixture(scope="module")
def foreign_server(tiny_engine: TinyEngine) -> Iterator[Server]:
    """Here the engine's model is asked for nothing but upstream's tensors, as on TensorRT-LLM's own backend."""
    parameters = {**fake_engine(step_seconds=STEP_SECONDS), BLS: {"inflight_tensors": "false"}}
    with Server(tiny_engine("llama"), DeploymentOptions(parameters=parameters)) as running:
        yield running


@pytest.fixture(scope="module")
def accumulating_server(tiny_engine: TinyEngine) -> Iterator[Server]:
    parameters = {**fake_engine(step_seconds=STEP_SECONDS), BLS: {"engine_drafts": "true"}}
    options = DeploymentOptions(accumulate_tokens=True, parameters=parameters)
    with Server(tiny_engine("llama"), options) as running:
        yield running


def ask(
    connection: Grpc, prompt: str | bytes, max_tokens: int, model: str = BLS, request_id: str = "", **values: Any
) -> Call:
    """A streamed request, unless the values say otherwise."""
    values = {"text_input": prompt, "max_tokens": max_tokens, "stream": True, **values}
    return connection.send(request(model, values, request_id))


def words(*texts: str) -> Any:
    return np.array([[text.encode() for text in texts]], np.object_)


def told(responses: list[Response]) -> Told:
    """What an answer says in the end, however it was cut into responses."""
    last = responses[-1]
    text = "".join(response.text for response in responses)
    return text, last.finish_reason, last.count("num_input_tokens"), last.count("num_output_tokens")


def same(server: Server, prompts: list[str], max_tokens: int, *several: dict[str, Any]) -> list[Told]:
    """What both models say to each prompt, with each of the values; they must say the same."""
    asked = [(prompt, values) for values in several for prompt in prompts]
    with Grpc(server.grpc_address) as connection:
        calls = [
            [ask(connection, prompt, max_tokens, model, **values) for model in ("ensemble", BLS)]
            for prompt, values in asked
        ]
        found = [[told(call.finish()) for call in both] for both in calls]
    for (theirs, ours), (prompt, values) in zip(found, asked, strict=True):
        assert ours == theirs, (prompt, values)
    return [ours for _, ours in found]


@pytest.mark.parametrize("name", SERVERS)
def test_it_says_what_the_ensemble_says(serving: Callable[[str], Server], name: str) -> None:
    whole = {"stream": False, "exclude_input_in_output": True}
    found = same(serving(name), PROMPTS, 30, {}, {"stream": False}, whole, {"end_id": -1})
    assert all(text for text, *_ in found)
    assert found[:3] == found[6:9], "a whole answer is the streamed one"


def test_each_step_of_a_stream_is_a_response_and_only_the_last_says_how_it_ended(paced_server: Server) -> None:
    with Grpc(paced_server.grpc_address) as connection:
        theirs, ours = (ask(connection, PROMPTS[0], 40, model).finish() for model in ("ensemble", BLS))
    assert [response.text for response in theirs] == [response.text for response in ours]
    assert [response.finish_reason for response in ours] == [None] * 39 + ["length"]
    assert ours[0].at < ours[-1].at - 30 * STEP_SECONDS


def test_over_http_too(paced_server: Server) -> None:
    values = {"text_input": PROMPTS[1], "max_tokens": 30}
    address = paced_server.http_address
    status, whole = generate(address, {**values, "exclude_input_in_output": True}, BLS)
    streamed = [event for _, event in generate_stream(address, values, BLS)]
    assert (status, whole["text_output"]) == (200, "".join(event["text_output"] for event in streamed))
    assert whole["finish_reason"] == streamed[-1]["finish_reason"] == "length"


def test_many_streams_run_at_once_and_are_not_mixed_up(paced_server: Server) -> None:
    with Grpc(paced_server.grpc_address) as connection:
        calls = [ask(connection, f"{number} {PROMPTS[number % 3]}", 60, request_id="same") for number in range(60)]
        texts = ["".join(response.text for response in call.finish()) for call in calls]
        alone = [
            told(ask(connection, f"{number} {PROMPTS[number % 3]}", 60, "ensemble").finish())[0] for number in (7, 8, 9)
        ]
    assert texts[7:10] == alone
    assert all(text.startswith(f"{number} ") for number, text in enumerate(texts))
    assert max(call.responses[0].at for call in calls) < min(call.responses[-1].at for call in calls)


def test_accumulated_text_is_the_whole_so_far(accumulating_server: Server) -> None:
    with Grpc(accumulating_server.grpc_address) as connection:
        for values in ({}, {"stop_words": words("lazy d", "🍰, a")}):
            for prompt in PROMPTS:
                deltas = [response.text for response in ask(connection, prompt, 25, "ensemble", **values).finish()]
                wholes = [response.text for response in ask(connection, prompt, 25, **values).finish()]
                assert wholes[-1] == "".join(deltas)
                assert all(later.startswith(one) for one, later in pairwise(wholes))
        (whole,) = ask(connection, PROMPTS[0], 25, stream=False, exclude_input_in_output=True).finish()
        assert whole.text == ask(connection, PROMPTS[0], 25).finish()[-1].text


def test_where_the_engine_speculates_a_request_for_drafts_is_served_as_any_other(accumulating_server: Server) -> None:
    with Grpc(accumulating_server.grpc_address) as connection:
        *_, last = ask(connection, PROMPTS[0], 10, num_draft_tokens=np.array([[3]], np.int32)).finish()
    assert last.text == "The quick brown fox jumps over the lazy dog"


@pytest.mark.parametrize("name", ["paced_server", "foreign_server"])
@pytest.mark.parametrize(
    ("prompt", "stop_words"),
    [
        (0, ["own f"]),
        (0, ["fox"]),
        (0, ["umps over", "zebra"]),
        (0, ["never said"]),
        (0, [" lazy", "The q"]),
        (1, ["京都の"]),
        (2, ["🍰"]),
        (2, ["‍👧"]),
    ],
)
def test_stop_words_are_cut_across_chunks(
    serving: Callable[[str], Server], name: str, prompt: int, stop_words: list[str]
) -> None:
    values = {"stop_words": words(*stop_words)}
    whole = {"stream": False, "exclude_input_in_output": True}
    streamed, at_once, _ = same(
        serving(name), [PROMPTS[prompt]], 40, values, {**values, **whole}, {**values, "min_tokens": 14}
    )
    assert streamed == at_once
    found = [word for word in stop_words if word in PROMPTS[prompt]]
    assert streamed[1] == ("stop_word" if found else "length")
    assert not any(word in streamed[0] for word in stop_words)


def test_nothing_is_held_back_that_begins_no_stop_word(paced_server: Server) -> None:
    with Grpc(paced_server.grpc_address) as connection:
        free, watched = (
            ask(connection, PROMPTS[0], 30, **values).finish() for values in ({}, {"stop_words": words("zebra")})
        )
    # A token without text is held until the next one: a character may begin with it.
    assert [response.text for response in watched] == [response.text for response in free if response.text]


@pytest.mark.parametrize("name", ["paced_server", "foreign_server"])
def test_log_probabilities_go_with_the_tokens_that_are_said(serving: Callable[[str], Server], name: str) -> None:
    with Grpc(serving(name).grpc_address) as connection:
        for stream in (True, False):
            for model in ("ensemble", BLS):
                values = {"return_log_probs": True, "stop_words": words("over"), "stream": stream}
                responses = ask(connection, PROMPTS[0], 30, model, **values).finish()
                count = responses[-1].count("num_output_tokens")
                each = np.concatenate([numbers(response, "output_log_probs") for response in responses])
                assert each.tolist() == [-0.5] * count
                assert numbers(responses[-1], "cum_log_probs").tolist() == [-0.5 * count]


def numbers(response: Response, name: str) -> Any:
    return np.frombuffer(response.outputs[name], np.float32)


@pytest.mark.parametrize("name", ["paced_server", "foreign_server"])
@pytest.mark.parametrize("stream", [True, False])
def test_several_answers_and_several_prompts_are_told_apart(
    serving: Callable[[str], Server], name: str, stream: bool
) -> None:
    with Grpc(serving(name).grpc_address) as connection:
        values: dict[str, Any] = {"num_return_sequences": 3, "stream": stream}
        for model in ("ensemble", BLS):
            responses = ask(connection, PROMPTS[0], 6, model, **values).finish()
            assert texts_by(responses, "sequence_index") == {
                index: texts_by(ask(connection, PROMPTS[0], 6, stream=stream).finish(), "")[0] for index in range(3)
            }
        both = {
            "text_input": np.array([[text.encode()] for text in PROMPTS[:2]], np.object_),
            "max_tokens": np.array([[5], [12]], np.int32),
            "stream": np.array([[stream], [stream]]),
        }
        theirs, ours = (
            texts_by(connection.send(request(model, both)).finish(), "batch_index") for model in ("ensemble", BLS)
        )
    assert ours == theirs
    assert set(ours) == {0, 1}


def texts_by(responses: list[Response], index: str) -> dict[int, str]:
    found: dict[int, str] = {}
    for response in responses:
        key = response.count(index) if index else 0
        found[key] = found.get(key, "") + response.text
    return found


@pytest.mark.parametrize("values", [{}, {"stop_words": words("brown")}])
def test_all_beams_come_in_one_response(paced_server: Server, values: dict[str, Any]) -> None:
    with Grpc(paced_server.grpc_address) as connection:
        theirs, ours = (
            ask(connection, PROMPTS[0], 6, model, beam_width=3, stream=False, return_log_probs=True, **values).finish()
            for model in ("ensemble", BLS)
        )
    assert [response.outputs for response in ours] == [response.outputs for response in theirs]


@pytest.mark.parametrize("name", ["paced_server", "foreign_server"])
@pytest.mark.parametrize("values", [{}, {"stop_words": words("over")}, {"stream": False}])
def test_times_come_with_the_last_response_where_wanted(
    serving: Callable[[str], Server], name: str, values: dict[str, Any]
) -> None:
    with Grpc(serving(name).grpc_address) as connection:
        *_, last = ask(connection, PROMPTS[0], 12, return_perf_metrics=True, **values).finish()
        *_, without = ask(connection, PROMPTS[0], 12, **values).finish()
    arrival, scheduled, first, end = (int(np.frombuffer(last.outputs[name], np.int64)[0]) for name in sorted_figures())
    assert arrival <= scheduled <= first <= end
    assert not FIGURES & set(without.outputs)


def sorted_figures() -> list[str]:
    return ["arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns"]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"max_tokens": 0}, "max_tokens must be a single value > 0; send one for each prompt [invalid_parameter]"),
        ({"text_input": ""}, "text_input is empty; send at least one character [empty_prompt]"),
        (
            {"text_input": b"\xff"},
            "text_input is not valid UTF-8: byte 0 of 1 can't be decoded; send UTF-8 [invalid_text]",
        ),
        ({"temperature": -1.0}, "temperature is -1; it must be 0 or more [invalid_parameter]"),
        ({"top_k": -1}, "top_k is -1; it must be 0 or more [invalid_parameter]"),
        ({"max_tokens": 10_000}, "the engine takes 4096; shorten the prompt or lower max_tokens [prompt_too_long]"),
        ({"num_return_sequences": 0}, "num_return_sequences is 0; it must be between 1 and 256 [invalid_parameter]"),
        ({"return_context_logits": True}, "leave it out [unsupported_input]"),
        ({"use_draft_logits": np.array([[True]])}, "use_draft_logits is not supported"),
        ({"stop_words": words("a" * 2000)}, "stop_words holds a word of more than 1024 bytes or tokens"),
        ({"num_draft_tokens": np.array([[3]], np.int32)}, "this deployment has no draft model"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_errors_keep_their_sentence_and_their_code(
    paced_server: Server, values: dict[str, Any], sentence: str, stream: bool
) -> None:
    with Grpc(paced_server.grpc_address) as connection:
        values = {"text_input": PROMPTS[0], "max_tokens": 5, "stream": stream, **values}
        assert sentence in connection.send(request(BLS, values)).error()
        assert told(ask(connection, PROMPTS[0], 2).finish())[0] == "The"


def test_a_misspelt_input_is_refused(paced_server: Server) -> None:
    status, answer = generate(paced_server.http_address, {"text_input": "a", "max_tokens": 1, "temprature": 1}, BLS)
    assert (status, answer["error"]) == (
        400,
        "there is no input 'temprature'; see the model's metadata for those it has [invalid_request]",
    )
