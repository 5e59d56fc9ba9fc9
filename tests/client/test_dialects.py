"""What is sent to each kind of server, and what is refused before."""

from __future__ import annotations

from typing import Any

import pytest
from inflight_client import InflightError
from inflight_client.dialects import CHAT, CLASSIFY, COMPLETIONS, DIALECTS, EMBEDDINGS, FIELDS, adapted

from tests.fixtures.errors import raises

SCHEMA = {"type": "object", "properties": {"cups": {"type": "integer"}}}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "tea", "schema": SCHEMA, "strict": True}}


@pytest.mark.parametrize(
    ("name", "route", "body", "sent"),
    [
        ("openai", CHAT, {"max_tokens": 3}, {"max_completion_tokens": 3}),
        ("openai", COMPLETIONS, {"max_completion_tokens": 3}, {"max_tokens": 3}),
        ("other", CHAT, {"max_completion_tokens": 3}, {"max_tokens": 3}),
        ("llama.cpp", CHAT, {"repetition_penalty": 1.1}, {"repeat_penalty": 1.1}),
        ("tgi", CHAT, {"stop": "x"}, {"stop": ["x"]}),
        ("tgi", COMPLETIONS, {"repetition_penalty": 1.1}, {"repetition_penalty": 1.1}),
        ("ollama", CHAT, {"n": 1, "top_k": 0, "tool_choice": "auto", "seed": None, "user": "me"}, {"user": "me"}),
        ("vllm", CHAT, {"made_up": 1}, {"made_up": 1}),
        ("vllm", EMBEDDINGS, {"truncate": False, "return_errors": True, "dimensions": 8}, {"dimensions": 8}),
        ("vllm", CHAT, {"response_format": JSON_SCHEMA}, {"response_format": JSON_SCHEMA}),
        ("vllm", CHAT, {"response_format": {"type": "text"}}, {}),
        ("vllm", CHAT, {"response_format": {"type": "regex", "regex": "a"}}, {"structured_outputs": {"regex": "a"}}),
        (
            "sglang",
            COMPLETIONS,
            {"response_format": {"type": "ebnf", "ebnf": "root ::= 'a'"}},
            {"ebnf": "root ::= 'a'"},
        ),
        ("tgi", CHAT, {"response_format": JSON_SCHEMA}, {"response_format": {"type": "json", "value": SCHEMA}}),
        ("trtllm", CHAT, {"response_format": JSON_SCHEMA}, {"response_format": {"type": "json", "schema": SCHEMA}}),
        (
            "llama.cpp",
            CHAT,
            {"response_format": JSON_SCHEMA},
            {"response_format": {"type": "json_object", "schema": SCHEMA}},
        ),
    ],
)
def test_fields_have_the_server_s_names(name: str, route: str, body: Any, sent: Any) -> None:
    assert adapted(name, route, body) == sent


@pytest.mark.parametrize(
    ("name", "route", "body", "named"),
    [
        ("openai", CHAT, {"top_k": 5}, "OpenAI does not support top_k"),
        ("ollama", CHAT, {"tool_choice": "required"}, "Ollama does not support tool_choice"),
        ("tgi", CHAT, {"n": 2}, "n"),
        ("tgi", CHAT, {"presence_penalty": 0.5}, "presence_penalty"),
        ("ollama", COMPLETIONS, {"response_format": JSON_SCHEMA}, COMPLETIONS),
        ("vllm", COMPLETIONS, {"tools": [{}]}, f"tools on {COMPLETIONS}"),
        ("openai", CHAT, {"response_format": {"type": "regex", "regex": "a"}}, "type regex"),
        ("tgi", EMBEDDINGS, {"input": "a"}, EMBEDDINGS),
        ("openai", CLASSIFY, {"input": "a"}, CLASSIFY),
        ("vllm", EMBEDDINGS, {"input_type": "query"}, "input_type"),
    ],
)
def test_what_a_server_lacks_is_refused_by_name(name: str, route: str, body: Any, named: str) -> None:
    with raises(InflightError, "unsupported_input", naming=named):
        adapted(name, route, body)


@pytest.mark.parametrize("schema", ["foo", None, {}, {"schema": "foo"}], ids=str)
def test_a_schema_that_is_none_is_refused(schema: Any) -> None:
    with raises(InflightError, "invalid_parameter", naming="json_schema"):
        adapted("tgi", CHAT, {"response_format": {"type": "json_schema", "json_schema": schema}})


def test_the_table_has_a_cell_for_each_dialect_and_ours_takes_all() -> None:
    assert {len(cells) for cells in FIELDS.values()} == {len(DIALECTS)}
    body = {**dict.fromkeys(FIELDS, 7), "response_format": {"type": "regex", "regex": "a"}}
    assert adapted("inflight", CHAT, body) == body
