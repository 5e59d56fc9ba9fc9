"""Which requests share an entry of the response cache: never two whose answers may differ."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from inflight_client import Deployment
from inflight_client.model_defaults import with_model_defaults
from inflight_client.sampling import Sampling

from inflight.gateway.adapters import AdapterFile
from inflight.gateway.model_text import ModelText
from inflight.gateway.response_cache import request_key as request_key_module
from inflight.gateway.response_cache.request_key import request_key
from inflight.gateway.server_pool import Candidate
from inflight.gateway.servers import UpstreamServer
from inflight.gateway.settings import GatewaySettings
from inflight.openai_api.fields import CHAT_FIELDS, COMPLETION_FIELDS, RESPONSES_FIELDS, Field, Tier
from inflight.openai_api.request import RequestDefaults, parse_request
from inflight.openai_api.responses import parse_responses

VARIANTS = 48
SERVER = UpstreamServer("127.0.0.1:1", GatewaySettings(()), AdapterFile(Path("none")))


def key(
    body: dict[str, Any],
    api: str = "chat",
    *,
    model: str = "tea",
    ready: bool = True,
    speaks_tokens: bool = True,
    digest: str = "1",
    template: str = "",
    policy: tuple[str, str] = ("shop", "1"),
    settings: Mapping[str, Any] | None = None,
    **deployed: Any,
) -> bytes | None:
    """The key of a body, at a server with such a deployment; `policy`: the tenant and the hash of the routes."""
    responses = None
    if api == "responses":
        translated = parse_responses(body)
        body, responses = translated.chat, translated.repeated
    served = {"model": "tea", "sampling": {"temperature": 0}, **deployed.pop("served", {})}
    SERVER.deployment = Deployment(**{"model": "m", "kind": "inflight", "build": "b1", "served": served, **deployed})
    encoder: Any = SimpleNamespace(template=template)
    SERVER.ready, SERVER.text = ready, replace(ModelText.unknown(), encoder=encoder, digest=digest)
    SERVER.speaks_tokens = speaks_tokens
    parsed = parse_request(body, api != "completions", RequestDefaults(None, Sampling()))
    parsed = replace(parsed, sampling=with_model_defaults(parsed.sampling, served))
    options = GatewaySettings((), **(settings or {}))
    routes: Any = SimpleNamespace(sha256=policy[1])
    return request_key(Candidate(SERVER, model), parsed, responses, policy[0], options, routes)


def word(random: Random) -> str:
    return "".join(random.choices('abcde 1é\n"\\{}:,', k=random.randint(1, 6)))


def words(random: Random) -> list[str]:
    return [word(random) for _ in range(random.randint(2, 3))]


def ids(random: Random) -> list[int]:
    return random.choices(range(200), k=random.randint(1, 4))


def schema(random: Random) -> dict[str, Any]:
    names = random.sample("abcd", 3)
    return {"type": "object", "properties": {name: {"type": random.choice(("string", "integer"))} for name in names}}


def function(random: Random) -> dict[str, Any]:
    return {"name": random.choice("fg"), "description": word(random), "parameters": schema(random)}


def messages(random: Random) -> list[dict[str, Any]]:
    arguments = json.dumps({name: random.randint(0, 3) for name in random.sample("abc", 2)})
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    asked: dict[str, Any] = {"role": random.choice(("system", "user")), "content": word(random)}
    return [asked, {"role": "assistant", "content": word(random), "tool_calls": [call]}][: random.randint(1, 2)]


def one_of(*values: Any) -> Callable[[Random], Any]:
    return lambda random: random.choice(values)


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


DRAWN: dict[str, Callable[[Random], Any]] = {
    "model": one_of("tea", "tea-2", "Tea", "tea "),
    "stop": words,
    "bad_words": words,
    "seed": lambda random: random.randrange(2**64),
    "top_k": lambda random: random.randint(1, 9999),  # 0 and -1 are both off
    "repetition_penalty": lambda random: random.uniform(0.1, 2),
    "stream_options": one_of({"include_usage": True}, {"include_usage": False}),
    "response_format": lambda random: {"type": "json_schema", "json_schema": {"schema": schema(random)}},
    "logit_bias": lambda random: {str(each): random.randint(-9, 9) for each in ids(random)},
    "allowed_token_ids": ids,
    "messages": messages,
    "prompt": lambda random: random.choice((word, words, ids))(random),
    "input": lambda random: random.choice((word(random), [{"role": "assistant", "content": word(random)}])),
    "instructions": word,
    "tools": lambda random: [{"type": "function", "function": function(random)}],
    "tool_choice": one_of("none", "auto", "required", named("f"), named("g")),
    "chat_template_kwargs": lambda random: {random.choice("ab"): random.choice((word(random), ids(random), 1, True))},
    "reasoning_effort": word,
    "metadata": lambda random: {random.choice("ab"): word(random)},
    "text": lambda random: {"format": {"type": "json_schema", "name": "x", "schema": schema(random)}},
    "reasoning": lambda random: {"effort": word(random)},
}
OF_RESPONSES: dict[str, Callable[[Random], Any]] = {
    "tools": lambda random: [{"type": "function", **function(random)}],
    "tool_choice": one_of("none", "auto", "required", {"type": "function", "name": "f"}),
}
APIS: dict[str, tuple[Mapping[str, Field], str, dict[str, Any]]] = {
    "chat": (CHAT_FIELDS, "messages", {"tools": [named("f"), named("g")], "logprobs": True}),
    "completions": (COMPLETION_FIELDS, "prompt", {}),
    "responses": (RESPONSES_FIELDS, "input", {"tools": [{"type": "function", "name": "f"}]}),
}
"""Their fields, that of the prompt, and what other fields need."""


def draw(api: str, name: str, field: Field, random: Random) -> Any:
    """A value of a field: by its schema unless it needs more."""
    if (special := (OF_RESPONSES if api == "responses" else {}).get(name) or DRAWN.get(name)) is not None:
        return special(random)
    if "enum" in field.schema:
        return random.choice(field.schema["enum"])
    if field.schema["type"] == "boolean":
        return random.random() < 0.5
    low, high = field.schema["minimum"], min(field.schema["maximum"], 9999)
    return random.randint(low, high) if field.schema["type"] == "integer" else random.uniform(low or 0.01, high)


@pytest.mark.parametrize("most", [50_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_requests_that_differ_in_one_field_never_share_an_entry(most: int) -> None:
    pairs, random = 0, Random(7)
    while pairs < most:
        for api, (table, prompt, needed) in APIS.items():
            for name, field in table.items():
                if field.tier is not Tier.HONOURED or (api, name) == ("responses", "stream_options"):
                    continue
                stream = {"stream": True} if name == "stream_options" else {}
                base = {"model": "tea", "seed": 5, **needed, **stream, prompt: DRAWN[prompt](random)}
                base |= {
                    other: draw(api, other, table[other], random) for other in random.sample(["top_p", "min_p"], 1)
                }
                values = [draw(api, name, field, random) for _ in range(VARIANTS)]
                distinct = {json.dumps(each): each for each in values}
                keys = {key({**base, name: each}, api) for each in distinct.values()}
                assert None not in keys
                assert len(keys) == len(distinct), (api, name, distinct)
                pairs += len(keys) * (len(keys) - 1) // 2


BODY: dict[str, Any] = {
    "model": "tea",
    "messages": [{"role": "user", "content": "Is there tea?", "name": "Ann"}],
    "max_tokens": 8,
    "logit_bias": {"1": 2, "3": 4},
    "chat_template_kwargs": {"a": 1, "b": {"c": 1, "d": 2}},
}


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"user": "ann", "metadata": {"a": "b"}, "prompt_cache_key": "x"},
        {"temperature": 0.0, "max_tokens": 8.0, "stop": None},
        {"chat_template_kwargs": {"b": {"c": 1, "d": 2}, "a": 1}},
    ],
)
def test_requests_for_the_same_answer_share_an_entry_in_any_order_of_their_fields(change: dict[str, Any]) -> None:
    def shuffled(values: dict[str, Any]) -> dict[str, Any]:
        return dict(random.sample(list(values.items()), len(values)))

    random, body = Random(1), {**BODY, **change}
    body["messages"] = [{**BODY["messages"][0], "tool_call_id": "1"}]
    kept = key(body)
    for _ in range(10):
        inner = {"messages": [shuffled(body["messages"][0])], "logit_bias": shuffled(BODY["logit_bias"])}
        assert key(shuffled(body | inner), served={"metrics_port": 1}) == kept is not None
        prompts: Any = parse_request(body | inner, True, RequestDefaults(None, Sampling())).prompts
        assert list(prompts[0][0]) == sorted(body["messages"][0])  # which a template may show


def test_tenants_engines_templates_adapters_and_settings_never_share_an_entry() -> None:
    adapters = {"served": {"adapters_sha256": {"formal": "1", "rude": "2"}}}
    changes: list[dict[str, Any]] = [
        *({}, {"policy": ("other", "1")}, {"policy": ("shop", "2")}, {"digest": "2"}),
        *({"build": "b2"}, {"version": "2"}, {"served": {"max_seq_len": 64}}),
        *({**adapters, "model": "formal"}, {**adapters, "model": "rude"}),
        {"served": {"adapters_sha256": {"formal": "3"}}, "model": "formal"},
        *({"settings": {name: "none"}} for name in ("tool_call_parser", "reasoning_parser")),
        {"settings": {"default_max_tokens": 9}},
    ]
    keys = [key(BODY, **change) for change in changes]
    assert None not in keys
    assert len(set(keys)) == len(changes)


def test_the_day_that_a_template_shows_is_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = '{% if strftime_now is defined %}{{ strftime_now( "%d %b" ) }}{% endif %}'
    keys = {template: set[bytes | None]() for template in (shown, "Cutting Knowledge Date: December 2023")}
    for day in range(1, 4):
        now = datetime(2025, 1, day, 12, day)
        monkeypatch.setattr(request_key_module, "datetime", SimpleNamespace(now=lambda now=now: now))
        for template, found in keys.items():
            found.add(key(BODY, template=template))
    assert [(len(found), None in found) for found in keys.values()] == [(3, False), (1, False)]


@pytest.mark.parametrize(
    ("body", "changes"),
    [
        ({"temperature": 1}, {}),
        ({}, {"served": {"sampling": {"temperature": 1.0}}}),
        ({}, {"served": {"sampling": {}}}),
        ({}, {"build": None}),
        ({}, {"ready": False}),
        ({}, {"model": "loaded-later"}),
        ({}, {"speaks_tokens": False}),
        ({}, {"template": "{% set now = strftime_now %}{{ now('%d') }}"}),
        ({}, {"template": "{{ ['a', 'b'] | random }}"}),
        ({"messages": [{"role": "user", "content": "x" * 2**20}]}, {}),
    ],
    ids=lambda value: str(value)[:60],
)
def test_answers_that_are_no_function_of_what_is_known_have_no_entry(body: dict[str, Any], changes: Any) -> None:
    assert key({**BODY, **body}, **changes) is None
    assert key({**BODY, "temperature": 1, "seed": 5}) is not None
