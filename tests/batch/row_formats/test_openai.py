"""Requests of OpenAI's Batch format, and the lines of its output and error files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from inflight_client import InflightError
from inflight_client.sampling import Guide

from inflight.batch.job.rows import RowStatus
from tests.batch.row_formats.parsing import CREATED, answer, asked, prompted, refused, rows_of

_USER = {"role": "user", "content": "Tea?"}
_TEXT = "/v1/completions"

_BOUNDED = {
    "type": "json_schema",
    "json_schema": {"name": "s", "schema": {"type": "number", "maximum": 1}},
}
"""No grammar keeps the bound."""


def _request(name: str = "r1", url: str = "/v1/chat/completions", **body: Any) -> dict[str, Any]:
    prompt = {"prompt": "Tea?"} if url == _TEXT else {"messages": [_USER]}
    return {"custom_id": name, "method": "POST", "url": url, "body": {"model": "tea-1", **prompt, **body}}


def test_a_chat_answer_is_a_line_of_openai_s_output_file(tmp_path: Path) -> None:
    form, rows = rows_of(tmp_path, _request())
    outcome = form.format_answer(asked(rows[0]), answer(finish_reason="stop_word"), 2)
    line = json.loads(outcome.text)
    name = line["id"].removeprefix("batch_req_")
    assert line == {
        "id": f"batch_req_{name}",
        "custom_id": "r1",
        "response": {
            "status_code": 200,
            "request_id": f"req_{name}",
            "body": {
                "id": f"chatcmpl-{name}",
                "object": "chat.completion",
                "created": CREATED,
                "model": "tea-1",
                "choices": [
                    {
                        "index": 0,
                        "message": {"role": "assistant", "content": "Green tea.", "refusal": None},
                        "logprobs": None,
                        "finish_reason": "stop",
                    }
                ],
                "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
            },
        },
        "error": None,
    }
    assert (outcome.status, outcome.id, outcome.tokens, outcome.attempts) == (RowStatus.OK, "r1", (7, 3), 2)


def test_what_has_no_effect_is_named_beside_the_answer(tmp_path: Path) -> None:
    form, rows = rows_of(tmp_path, _request(user="u", response_format=_BOUNDED))
    response = json.loads(form.format_answer(asked(rows[0]), answer(), 1).text)["response"]
    assert response["no_effect"] == ["user", "response_format.maximum"]


def test_a_keyword_without_effect_is_not_checked_either(tmp_path: Path) -> None:
    _, rows = rows_of(tmp_path, _request(response_format=_BOUNDED))
    assert prompted(rows[0]).schema == {"type": "number"}


def test_rows_of_an_adapter_have_no_body_since_that_can_not_name_it(tmp_path: Path) -> None:
    _, rows = rows_of(tmp_path, _request(), defaults={"adapter": 1})
    assert (prompted(rows[0]).body, prompted(rows[0]).sampling.adapter) == (None, 1)


def test_an_answer_to_a_text_is_a_text_completion(tmp_path: Path) -> None:
    form, rows = rows_of(tmp_path, _request(url=_TEXT, prompt=["Tea?"]))
    row = asked(rows[0])
    assert prompted(row).prompt == "Tea?"
    body = json.loads(form.format_answer(row, answer(finish_reason="length", usage=None), 1).text)["response"]["body"]
    assert body["object"] == "text_completion"
    assert body["choices"] == [{"text": "Green tea.", "index": 0, "logprobs": None, "finish_reason": "length"}]
    assert "usage" not in body


def test_ids_are_the_row_s_own_in_every_run(tmp_path: Path) -> None:
    form, rows = rows_of(tmp_path, _request("r1"), _request("r2"))
    again, same = rows_of(tmp_path, _request("r1"))
    first, second = (form.format_answer(asked(row), answer(), 1).text for row in rows)
    assert again.format_answer(asked(same[0]), answer(), 5).text == first
    assert json.loads(first)["id"] != json.loads(second)["id"]


def test_every_parameter_that_can_be_honoured_is(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"é": {"type": "string"}}}
    body: dict[str, Any] = {
        "max_completion_tokens": 9, "temperature": 0.5, "top_p": 0.9, "seed": 4, "stop": "\n", "presence_penalty": 0.1,
        "frequency_penalty": 0.2, "top_k": 3, "min_tokens": 2, "repetition_penalty": 1.1, "ignore_eos": True,
        "response_format": {"type": "json_schema", "json_schema": {"name": "tea", "schema": schema}},
        "chat_template_kwargs": {"enable_thinking": False}, "logprobs": True, "top_logprobs": 2, "min_p": 0.1,
        "n": 1, "stream": False, "user": "me", "metadata": {"a": "b"}, "tools": None, "store": False,
        "logit_bias": {"5": 2}, "allowed_token_ids": [5, 6], "bad_words": ["no"],
    }  # fmt: skip
    _, rows = rows_of(tmp_path, _request(**body), _request(response_format={"type": "json_object"}), _request())
    ask = prompted(rows[0])
    sampling = ask.sampling
    assert (ask.max_tokens, sampling.min_p, sampling.logit_bias) == (9, 0.1, {5: 2})
    template = {"enable_thinking": False}
    assert ask.options == {"return_log_probs": True, "top_log_probs": 2, "chat_template_kwargs": template}
    assert (sampling.allowed_token_ids, sampling.bad_words) == ((5, 6), ("no",))
    assert (sampling.temperature, sampling.top_p, sampling.seed, sampling.stop) == (0.5, 0.9, 4, ("\n",))
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (0.1, 0.2, 1.1)
    assert (sampling.top_k, sampling.min_tokens, sampling.end_id) == (3, 2, -1)
    assert sampling.guide is not None
    assert (sampling.guide.type, json.loads(sampling.guide.text)) == ("json_schema", schema)
    assert prompted(rows[1]).sampling.guide == Guide("json")
    assert prompted(rows[2]).max_tokens == 128


def test_log_probs_name_tokens_by_their_ids(tmp_path: Path) -> None:
    form, rows = rows_of(tmp_path, _request(logprobs=True), _request("r2", url=_TEXT, logprobs=0))
    generation = answer(token_ids=(5, 9), log_probs=(-0.5, -1.5))
    chat, text = (
        json.loads(form.format_answer(asked(row), generation, 1).text)["response"]["body"]["choices"][0]["logprobs"]
        for row in rows
    )
    first = {"token": "token_id:5", "logprob": -0.5, "bytes": None, "top_logprobs": []}
    assert (chat["content"][0], len(chat["content"])) == (first, 2)
    assert (text["tokens"], text["token_logprobs"]) == (["token_id:5", "token_id:9"], [-0.5, -1.5])


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"n": True}, "n"),
        ({"stream": True}, "stream"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"logit_bias": {"five": 1}}, "logit_bias"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
        ({"no_such_thing": 1}, "no_such_thing"),
        ({"prompt": "Tea?"}, "prompt"),
        ({"model": None}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": "a\0"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 4, "max_completion_tokens": 5}, "max_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"seed": 2**90}, "seed"),
        ({"stop": [1]}, "stop"),
        ({"logprobs": 3}, "logprobs"),
        ({"ignore_eos": 1}, "ignore_eos"),
        ({"response_format": {"type": "grammar"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"chat_template_kwargs": "x"}, "chat_template_kwargs"),
    ],
)
def test_a_body_that_asks_for_what_can_t_be_had_is_answered_with_400(
    tmp_path: Path, body: dict[str, Any], param: str
) -> None:
    form, rows = rows_of(tmp_path, _request(**body))
    fault = refused(rows[0])
    outcome = form.format_invalid(fault)
    line = json.loads(outcome.text)
    error = line["response"]["body"]["error"]
    assert (outcome.status, line["response"]["status_code"], line["error"]) == (RowStatus.ERROR, 400, None)
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert param in error["message"]


def test_parameters_of_the_other_url_are_refused(tmp_path: Path) -> None:
    _, rows = rows_of(tmp_path, _request(url=_TEXT, messages=[_USER]), _request(url=_TEXT, prompt=["a", "b"]))
    assert (refused(rows[0]).context, refused(rows[1]).context) == ("messages", "prompt")


@pytest.mark.parametrize(
    ("code", "status", "openai_code"),
    [
        ("prompt_too_long", 400, "context_length_exceeded"),
        ("invalid_parameter", 400, "invalid_value"),
        ("model_not_found", 404, "model_not_found"),
        ("overloaded", 429, "server_overloaded"),
    ],
)
def test_what_a_server_refused_has_the_status_of_that(tmp_path: Path, code: str, status: int, openai_code: str) -> None:
    form, rows = rows_of(tmp_path, _request())
    outcome = form.format_failure(asked(rows[0]), InflightError("it was refused", code), 3)
    line = json.loads(outcome.text)
    assert (line["response"]["status_code"], line["error"], line["custom_id"]) == (status, None, "r1")
    assert line["response"]["body"]["error"]["code"] == openai_code
    assert (outcome.code, outcome.attempts) == (code, 3)


@pytest.mark.parametrize(
    ("code", "openai_code"), [("deadline_exceeded", "request_timeout"), ("engine_died", "engine_died")]
)
def test_what_was_never_answered_has_no_response(tmp_path: Path, code: str, openai_code: str) -> None:
    form, rows = rows_of(tmp_path, _request())
    line = json.loads(form.format_failure(asked(rows[0]), InflightError("no answer came", code), 3).text)
    assert line["response"] is None
    assert line["error"] == {"code": openai_code, "message": "no answer came"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"custom_id": None}, "there is no custom_id"),
        ({"custom_id": 5}, "the custom_id is 5"),
        ({"custom_id": ""}, "the custom_id is ''"),
        ({"method": "GET"}, "the method is 'GET'"),
        ({"url": "/v1/embeddings"}, "the url is '/v1/embeddings'"),
        ({"url": None}, "the url is None"),
        ({"body": []}, "the body is []"),
    ],
)
def test_a_line_that_is_no_request_is_dead(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    form, rows = rows_of(tmp_path, _request("r0"), {**_request(), **change}, b"{", _request("r2"))
    fault = refused(rows[1])
    line = json.loads(form.format_invalid(fault).text)
    assert (fault.status, line["line"], line["code"]) == (RowStatus.DEAD, 2, "row_invalid")
    assert line["id"] == ("r1" if "custom_id" not in change else None)
    assert words in line["message"]
    assert json.loads(form.format_invalid(refused(rows[2])).text)["line"] == 3
    assert asked(rows[3]).id == "r2"


_WITHOUT = [{key: value for key, value in _request("r0").items() if key != left_out} for left_out in _request()]


@pytest.mark.parametrize("odd", [*_WITHOUT, {"prompt": "Tea?"}, {}], ids=lambda odd: "-".join(odd))
def test_one_odd_line_at_the_beginning_does_not_tell_the_form_of_all(tmp_path: Path, odd: dict[str, Any]) -> None:
    _, rows = rows_of(tmp_path, odd, *(_request(f"r{number}") for number in range(1, 5)))
    assert refused(rows[0]).code == "row_invalid"
    assert [asked(row).id for row in rows[1:]] == ["r1", "r2", "r3", "r4"]


def test_one_request_among_prompts_does_not_either(tmp_path: Path) -> None:
    _, rows = rows_of(tmp_path, _request(), {"prompt": "Tea?", "url": "https://tea.org", "body": {}}, {"prompt": "Oh?"})
    assert refused(rows[0]).code == "row_invalid"
    assert [prompted(row).prompt for row in rows[1:]] == ["Tea?", "Oh?"]


def test_a_row_that_kills_engines_is_dead(tmp_path: Path) -> None:
    form, rows = rows_of(tmp_path, _request())
    outcome = form.format_failure(asked(rows[0]), InflightError("three engines died", "row_crashed_engine"), 3)
    assert (outcome.status, outcome.attempts) == (RowStatus.DEAD, 3)
    assert json.loads(outcome.text) == {
        "line": 1, "id": "r1", "code": "row_crashed_engine", "message": "three engines died",
    }  # fmt: skip
