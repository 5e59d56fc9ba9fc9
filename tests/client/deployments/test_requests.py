"""A call reaches each deployment in its own tensors, and what it lacks is refused by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from inflight_client.call import Call, TokenIds
from inflight_client.chat_template import ChatTemplate
from inflight_client.deployments.deployment import Deployment
from inflight_client.deployments.requests import build_request, build_stop_request
from inflight_client.errors import InflightError
from inflight_client.sampling import Guide, Sampling
from inflight_client.transport import InferRequest, Tensor
from inflight_client.versions import client_version

from tests.client.support.deployments import OURS, OURS_BEFORE_CPP, find, repository
from tests.fixtures.errors import raises
from tests.standins.kserve.repository import ModelSpec, llmapi, text_models

TRACE = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"


@pytest.fixture(scope="module")
def ours() -> Deployment:
    return find(repository(OURS, inflight_version="0.1.0"))


def asked(
    deployment: Deployment,
    prompt: Any = "Tea?",
    seconds_left: float | None = None,
    stream: bool = False,
    **options: Any,
) -> InferRequest:
    return build_request(deployment, Call(prompt, stream, **{"request_id": "mine", **options}), seconds_left, None)


def values(request: InferRequest) -> dict[str, Any]:
    """Each input's value, or its values where it may have several."""
    return {
        name: tensor.values if name in ("stop_words", "bad_words", "sampling_param_stop") else tensor.values[0]
        for name, tensor in request.inputs.items()
    }


def refusal(deployment: Deployment, **options: Any) -> str:
    with raises(InflightError, "unsupported_input") as raised:
        asked(deployment, **options)
    return str(raised.value)


def test_a_plain_request_asks_ours_for_no_more_than_is_needed(ours: Deployment) -> None:
    request = asked(ours)
    assert (request.model, request.id, request.headers) == ("ensemble", "mine", {})
    assert values(request) == {
        "text_input": "Tea?",
        "max_tokens": 128,
        "stream": False,
        "exclude_input_in_output": True,
        "return_token_ids": True,
    }
    assert {tensor.shape for tensor in request.inputs.values()} == {(1, 1)}
    streamed = asked(ours, stream=True)
    assert "return_token_ids" not in streamed.inputs
    assert streamed.outputs == (
        *("text_output", "finish_reason", "num_input_tokens", "num_output_tokens", "num_responses"),
        "num_cached_tokens",
    )


def test_everything_that_can_be_asked_of_ours_reaches_its_tensor(ours: Deployment) -> None:
    sampling = Sampling(
        temperature=0.5,
        top_k=4,
        top_p=1,
        seed=2**64 - 1,
        repetition_penalty=1.1,
        presence_penalty=0.1,
        frequency_penalty=0.2,
        min_tokens=3,
        end_id=-1,
        stop=("one", "two"),
        bad_words="three",
        guide=Guide("regex", "[a-z]+"),
        adapter=7,
        min_p=0.25,
        logit_bias={5: 1, 6: -2.5},
        allowed_token_ids=[5, 6],
    )
    request = asked(
        ours,
        seconds_left=1.5001,
        stream=True,
        max_tokens=9,
        sampling=sampling,
        priority=-2,
        tenant="lab",
        traceparent=TRACE,
        top_log_probs=2,
        return_prompt_log_probs=True,
        return_token_ids=True,
        return_perf_metrics=True,
    )
    assert values(request) == {
        "text_input": "Tea?",
        "max_tokens": 9,
        "stream": True,
        "exclude_input_in_output": True,
        "temperature": 0.5,
        "top_k": 4,
        "top_p": 1.0,
        "seed": 2**64 - 1,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "min_tokens": 3,
        "end_id": -1,
        "stop_words": ("one", "two"),
        "bad_words": ("three",),
        "guided_decoding_guide_type": "regex",
        "guided_decoding_guide": "[a-z]+",
        "lora_task_id": 7,
        "priority": -2,
        "deadline_ms": 1501,
        "min_p": 0.25,
        "logit_bias_ids": 5,
        "logit_bias_values": 1.0,
        "allowed_token_ids": 5,
        "return_log_probs": True,
        "num_top_log_probs": 2,
        "return_prompt_log_probs": True,
        "return_token_ids": True,
        "return_perf_metrics": True,
    }
    assert request.inputs["stop_words"] == Tensor("BYTES", (1, 2), ("one", "two"))
    assert request.inputs["logit_bias_ids"].values == request.inputs["allowed_token_ids"].values == (5, 6)
    assert request.inputs["logit_bias_values"] == Tensor("FP32", (1, 2), (1.0, -2.5))
    assert request.inputs["seed"].datatype == "UINT64"
    assert request.parameters == {"tenant": "lab", "traceparent": TRACE, "inflight_client": client_version()}
    assert request.headers == {"traceparent": TRACE}
    times = ("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns")
    assert {"token_ids", "output_log_probs", "cum_log_probs", *times} | {"prompt_top_token_ids"} <= set(request.outputs)


def test_a_conversation_goes_to_ours_as_it_is(ours: Deployment) -> None:
    messages = ({"role": "user", "content": "Tëa?"},)
    request = asked(ours, messages, chat_template_kwargs={"enable_thinking": False})
    said = values(request)
    assert said["text_input"] == ""
    assert said["messages"] == '[{"role": "user", "content": "Tëa?"}]'
    assert said["chat_template_kwargs"] == '{"enable_thinking": false}'
    assert "chat_template_kwargs" not in asked(ours, messages).inputs
    with raises(InflightError, "invalid_messages", naming="JSON"):
        asked(ours, [{"role": "user", "content": object()}])


def test_a_template_that_the_client_is_given_is_the_one_that_counts(ours: Deployment, tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{% for one in messages %}<{{ one.content }}>{% endfor %}")
    template = ChatTemplate.from_directory(tmp_path)
    request = build_request(ours, Call([{"role": "user", "content": "Tea?"}], stream=False), None, template)
    assert values(request)["text_input"] == "<Tea?>"
    assert "messages" not in request.inputs


def test_others_without_a_template_say_how_to_give_one() -> None:
    with raises(InflightError, "no_chat_template", naming="chat_template=DIRECTORY"):
        asked(find(text_models()), [{"role": "user", "content": "Tea?"}])


def test_a_temperature_alone_samples(ours: Deployment) -> None:
    for deployment, name in ((ours, "top_p"), (find(llmapi()), "sampling_param_top_p")):
        said = values(asked(deployment, sampling=Sampling(temperature=0.7)))
        assert said[name] == 1.0
        assert name not in values(asked(deployment, sampling=Sampling(temperature=0.7, top_k=3)))


@pytest.mark.parametrize(
    ("sampling", "sent"),
    [
        (Sampling(), {}),
        (Sampling(temperature=0), {"top_k": 1}),
        (Sampling(temperature=0.7, top_k=1), {"top_k": 1}),
        (Sampling(temperature=0.7, top_k=0), {"top_k": 1}),  # greedy on ours, where no bound is given
        (Sampling(temperature=0.7, top_k=5, top_p=0), {"temperature": 0.7, "top_k": 5}),
        (Sampling(temperature=0.7, top_p=0.5), {"temperature": 0.7, "top_p": 0.5}),
    ],
)
def test_the_llm_api_is_told_in_its_own_way_what_is_greedy(sampling: Sampling, sent: dict[str, Any]) -> None:
    said = values(asked(find(llmapi()), sampling=sampling))
    given = {name.removeprefix("sampling_param_"): value for name, value in said.items()}
    assert {name: given[name] for name in ("temperature", "top_k", "top_p") if name in given} == sent


def test_the_llm_api_has_names_and_shapes_of_its_own() -> None:
    request = asked(
        find(llmapi()), stream=True, sampling=Sampling(seed=3, stop=("one", "two")), return_perf_metrics=True
    )
    assert values(request) == {
        "text_input": "Tea?",
        "sampling_param_max_tokens": 128,
        "streaming": True,
        "sampling_param_exclude_input_from_output": True,
        "sampling_param_seed": 3,
        "sampling_param_stop": ("one", "two"),
        "sampling_param_return_perf_metrics": True,
        "return_finish_reason": True,
        "return_stop_reason": True,
    }
    assert request.inputs["sampling_param_stop"].shape == (2,)
    assert {tensor.shape for name, tensor in request.inputs.items() if name != "sampling_param_stop"} == {(1,)}
    assert request.outputs[:3] == ("text_output", "finish_reason", "stop_reason")


def test_older_names_and_models_without_batches_are_known() -> None:
    deployment = find(text_models(older=True, batches=False))
    request = asked(deployment, sampling=Sampling(min_tokens=2, seed=5, stop=("one", "two")))
    assert values(request) == {
        "text_input": "Tea?",
        "max_tokens": 128,
        "stream": False,
        "exclude_input_in_output": True,
        "min_length": 2,
        "random_seed": 5,
        "stop_words": ("one", "two"),
    }
    assert request.inputs["stop_words"].shape == (2,)
    assert request.inputs["min_length"].shape == (1,)


def test_counts_are_asked_for_where_they_come_only_so() -> None:
    said = values(asked(find(text_models()), seconds_left=3))
    assert said["return_num_input_tokens"] is said["return_num_output_tokens"] is True
    assert "deadline_ms" not in said


@pytest.mark.parametrize(
    ("models", "options", "words"),
    [
        (text_models(), {"priority": 1}, "model ensemble does not support priority"),
        (text_models(), {"tenant": "lab"}, "does not support tenant"),
        (text_models(), {"return_token_ids": True}, "does not support return_token_ids"),
        (text_models(decoupled=False), {"stream": True}, "stream: its model is not decoupled"),
        (llmapi(decoupled=False), {"stream": True}, "stream: its model is not decoupled"),
        (text_models(older=True), {"return_perf_metrics": True}, "return_perf_metrics"),
        (text_models(older=True), {"sampling": Sampling(guide=Guide("json"))}, "guide"),
        (llmapi(), {"return_log_probs": True}, "the LLM API's model tensorrt_llm does not support return_log_probs"),
        (llmapi(), {"sampling": Sampling(repetition_penalty=1.1)}, "does not support repetition_penalty"),
        (llmapi(), {"sampling": Sampling(min_tokens=1)}, "does not support min_tokens"),
        (llmapi(), {"sampling": Sampling(end_id=2)}, "does not support end_id"),
        (llmapi(), {"sampling": Sampling(bad_words="x")}, "does not support bad_words"),
        (llmapi(), {"sampling": Sampling(adapter=1)}, "does not support adapter"),
        (llmapi(), {"sampling": Sampling(guide=Guide("json"))}, "does not support guide"),
    ],
)
def test_what_a_deployment_lacks_is_refused_by_name(
    models: Mapping[str, ModelSpec], options: dict[str, Any], words: str
) -> None:
    assert words in refusal(find(models), **options)


def test_a_server_of_ours_from_before_parameters_gets_none(ours: Deployment) -> None:
    models = repository(OURS)
    del models["ensemble"].outputs["num_responses"]  # type: ignore[attr-defined]
    older = find(models)
    assert older.kind == "inflight"
    assert asked(older, traceparent=TRACE).parameters == {}
    assert asked(ours, traceparent=TRACE).parameters["traceparent"] == TRACE
    assert "does not support tenant" in refusal(older, tenant="lab")


def test_a_request_to_stop_goes_where_ids_are_known(ours: Deployment) -> None:
    request = build_stop_request(ours, "mine")
    assert (request.model, request.id) == ("tensorrt_llm", "mine")
    assert values(request) == {"input_ids": 0, "input_lengths": 1, "request_output_len": 1, "stop": True}
    assert {tensor.shape for tensor in request.inputs.values()} == {(1, 1)}
    flat = build_stop_request(find(text_models(batches=False)), "mine")
    assert {tensor.shape for tensor in flat.inputs.values()} == {(1,)}
    api = build_stop_request(find(llmapi()), "mine")
    assert (api.model, api.id, values(api)) == ("tensorrt_llm", "mine", {"text_input": "", "stop": True})
    with raises(InflightError, "unsupported_input", naming="cancel"):
        build_stop_request(find(text_models(), "tensorrt_llm_bls"), "mine")


def test_the_llm_api_answers_a_request_to_stop_with_an_error() -> None:
    deployment = find(llmapi())
    assert deployment.is_stop_response(InflightError("Request cancelled by client", "invalid_request"))
    assert not deployment.is_stop_response(InflightError("the server is gone", "server_gone"))


class Letters:
    """Text of which each letter is a token."""

    end_ids = (2, 3)

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        return [list(map(ord, word)) for word in words]

    def decode(self, token_ids: Sequence[int], ended: bool, dropped: int) -> str:
        return "".join(map(chr, token_ids))


def test_a_model_of_token_ids_gets_token_ids() -> None:
    deployment = find(repository(OURS), "tensorrt_llm")
    words = Sampling(stop=("no",), bad_words=("ab", "c"), top_k=3)
    call = Call(TokenIds((5, 6)), True, sampling=words, token_text=Letters())
    request = build_request(deployment, call, None, None)
    assert request.inputs["input_ids"].values == (5, 6)
    assert (values(request)["input_lengths"], values(request)["runtime_top_k"]) == (2, 3)
    assert request.inputs["stop_words"].values == ("no",)
    assert request.inputs["bad_words_list"] == Tensor("INT32", (1, 2, 3), (97, 98, 99, 2, 3, -1))
    assert "output_ids" in request.outputs
    cpp = build_request(find(repository(OURS_BEFORE_CPP), "tensorrt_llm"), call, None, None)
    assert cpp.inputs["stop_words_list"] == Tensor("INT32", (1, 2, 3), (110, 111, 3, 2, 3, -1))
    assert (values(cpp)["end_id"], values(cpp)["request_output_len"]) == (2, 128)
    for refused in (Call("Tea?", True), Call(TokenIds((5,)), True, sampling=words)):
        with raises(InflightError, "unsupported_input"):
            build_request(deployment, refused, None, None)
