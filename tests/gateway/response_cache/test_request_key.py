"""Which requests share an entry of the response cache: never two whose answers may differ."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from inflight_client import Deployment
from inflight_client.model_defaults import with_model_defaults
from inflight_client.sampling import Sampling

from inflight.gateway.model_text import ModelText
from inflight.gateway.response_cache.request_key import request_key
from inflight.gateway.settings import GatewaySettings
from inflight.openai_api.fields import CHAT_FIELDS, COMPLETION_FIELDS, RESPONSES_FIELDS, Field, Tier
from inflight.openai_api.request import RequestDefaults, parse_request
from inflight.openai_api.responses import parse_responses

TABLES = {"chat": CHAT_FIELDS, "completions": COMPLETION_FIELDS, "responses": RESPONSES_FIELDS}
DEPLOYMENT = Deployment("ensemble", "inflight", version="1", build="b1", served={"sampling": {"temperature": 0}})
VARIANTS = 48


def server(**changes: Any) -> Any:
    return SimpleNamespace(
        **{"model": "tea", "ready": True, "deployment": DEPLOYMENT, "text": ModelText.unknown(), **changes}
    )


def key(body: dict[str, Any], api: str = "chat", **changes: Any) -> bytes | None:
    """The key of a body; `changes` are those of the other arguments."""
    responses = None
    if api == "responses":
        translated = parse_responses(body)
        body, responses = translated.chat, translated.repeated
    parsed = parse_request(body, api != "completions", RequestDefaults(None, Sampling()))
    at = changes.pop("server", None) or server()
    parsed = replace(
        parsed, sampling=with_model_defaults(parsed.sampling, at.deployment.served if at.deployment else {})
    )
    values = {"model": "tea", "settings": GatewaySettings(()), "tenant": "shop", "routes": "r1", **changes}
    return request_key(parsed, server=at, responses=responses, **values)


def word(random: Random) -> str:
    return "".join(random.choices('abcde 1é\n"\\{}:,', k=random.randint(1, 6))) or "a"


def schema(random: Random) -> dict[str, Any]:
    names = random.sample("abcd", 3)
    return {"type": "object", "properties": {name: {"type": random.choice(("string", "integer"))} for name in names}}


def function(random: Random) -> dict[str, Any]:
    return {"name": random.choice("fg"), "description": word(random), "parameters": schema(random)}


def message(random: Random) -> dict[str, Any]:
    if random.random() < 0.3:
        called = {
            "name": "f",
            "arguments": json.dumps({name: random.randint(0, 3) for name in random.sample("abc", 2)}),
        }
        return {"role": "assistant", "content": word(random), "tool_calls": [{"id": "c", "function": called}]}
    return {"role": random.choice(("system", "user", "assistant")), "content": word(random)}


def ids(random: Random) -> list[int]:
    return random.choices(range(200), k=random.randint(1, 4))


def response_format(random: Random) -> dict[str, Any]:
    return random.choice(
        (
            {"type": "json_schema", "json_schema": {"name": "x", "schema": schema(random)}},
            {"type": "regex", "regex": word(random)},
            {"type": "json_object"},
        )
    )


def one_of(*values: Any) -> Callable[[Random], Any]:
    return lambda random: random.choice(values)


def number(low: float, high: float) -> Callable[[Random], float]:
    return lambda random: round(random.uniform(low, high), 6)


def whole(low: int, high: int) -> Callable[[Random], int]:
    return lambda random: random.randint(low, high)


def words(random: Random) -> list[str]:
    return [word(random) for _ in range(random.randint(1, 3))]


FLAG, NAMES = one_of(False, True), one_of("tea", "tea-2", "Tea", "tea ")
VALUES: dict[str, Callable[[Random], Any]] = {
    **{name: whole(1, 9999) for name in ("max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens")},
    **{name: number(-2, 2) for name in ("presence_penalty", "frequency_penalty")},
    **dict.fromkeys(("stream", "ignore_eos", "parallel_tool_calls", "echo"), FLAG),
    **dict.fromkeys(("add_generation_prompt", "continue_final_message"), FLAG),
    **dict.fromkeys(("stop", "bad_words"), words),
    **{name: whole(0, 20) for name in ("prompt_logprobs", "top_logprobs")},
    "model": NAMES,
    "temperature": number(0, 2),
    "top_p": number(0.01, 1),
    "min_p": number(0.01, 1),
    "top_k": whole(1, 9999),
    "repetition_penalty": number(0.1, 2),
    "n": whole(1, 16),
    "seed": whole(-(2**63), 2**64 - 1),
    "stream_options": one_of({"include_usage": True}, {"include_usage": False}),
    "response_format": response_format,
    "service_tier": one_of("auto", "default", "priority", "flex"),
    "logit_bias": lambda random: {str(each): random.randint(-9, 9) for each in ids(random)},
    "allowed_token_ids": ids,
    "messages": lambda random: [message(random) for _ in range(random.randint(1, 3))],
    "prompt": lambda random: random.choice((word, ids, lambda random: [*words(random), "tea"]))(random),
    "input": lambda random: [message(random), message(random)] if random.random() < 0.5 else word(random),
    "instructions": word,
    "tools": lambda random: [{"type": "function", "function": function(random)}],
    "tool_choice": one_of(
        "none", "auto", "required", *({"type": "function", "function": {"name": each}} for each in "fg")
    ),
    "chat_template_kwargs": lambda random: {
        random.choice("ab"): random.choice((word(random), ids(random), 1, 1.5, True))
    },
    "reasoning_effort": word,
    "metadata": lambda random: {random.choice("ab"): word(random)},
    "text": lambda random: {"format": {"type": "json_schema", "name": "x", "schema": schema(random)}},
    "reasoning": lambda random: {"effort": word(random)},
    "logprobs": FLAG,
}
FUNCTIONS = [{"type": "function", "function": {"name": each}} for each in "fg"]
OF_API: dict[tuple[str, str], Callable[[Random], Any]] = {
    ("completions", "logprobs"): whole(0, 20),
    ("responses", "tools"): lambda random: [{"type": "function", **function(random)}],
    ("responses", "tool_choice"): one_of(
        "none", "auto", "required", *({"type": "function", "name": each} for each in "fg")
    ),
}
NEEDED: dict[tuple[str, str], dict[str, Any]] = {
    **{("chat", name): {"tools": FUNCTIONS} for name in ("tool_choice", "parallel_tool_calls")},
    **{
        ("responses", name): {"tools": [{"type": "function", "name": each} for each in "fg"]}
        for name in ("tool_choice", "parallel_tool_calls")
    },
    ("chat", "top_logprobs"): {"logprobs": True},
    ("chat", "stream_options"): {"stream": True},
    ("completions", "stream_options"): {"stream": True},
}
WITHOUT_EFFECT = {("responses", "stream_options")}


def honoured(table: dict[str, Field]) -> list[str]:
    return [name for name, field in table.items() if field.tier is Tier.HONOURED]


def variants(api: str, name: str, random: Random) -> dict[str, dict[str, Any]]:
    """Bodies that differ in one field, by the JSON of its value."""
    prompt = {"chat": "messages", "completions": "prompt", "responses": "input"}[api]
    body = {
        "model": "tea",
        prompt: VALUES[prompt](random),
        "seed": VALUES["seed"](random),
        **NEEDED.get((api, name), {}),
    }
    for other in random.sample(("top_p", "min_p", "top_k", "bad_words", "logit_bias", "min_tokens"), 2):
        body[other] = VALUES[other](random)
    draw = OF_API.get((api, name), VALUES[name])
    return {json.dumps(value): {**body, name: value} for value in (draw(random) for _ in range(VARIANTS))}


@pytest.mark.parametrize("most", [50_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_requests_that_differ_in_one_field_never_share_an_entry(most: int) -> None:
    pairs, random = 0, Random(7)
    fields = [(api, name) for api, table in TABLES.items() for name in honoured(table)]
    while pairs < most:
        for api, name in fields:
            if (api, name) in WITHOUT_EFFECT:
                continue
            bodies = variants(api, name, random)
            keys = [key(each, api) for each in bodies.values()]
            assert None not in keys
            assert len(set(keys)) == len(bodies), (api, name, bodies)
            pairs += len(bodies) * (len(bodies) - 1) // 2
    assert pairs >= most


BODY = {
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
        {"temperature": 0},
        {"temperature": 0.0, "max_tokens": 8.0, "stop": None},
        {"chat_template_kwargs": {"b": {"c": 1, "d": 2}, "a": 1}},
    ],
)
def test_requests_for_the_same_answer_share_an_entry_in_any_order_of_their_fields(change: dict[str, Any]) -> None:
    random, body = Random(1), {**BODY, **change}
    for _ in range(10):
        shuffled = dict(random.sample(list(body.items()), len(body)))
        shuffled["messages"] = [dict(random.sample(list(each.items()), len(each))) for each in BODY["messages"]]  # type: ignore[attr-defined, call-overload]
        shuffled["logit_bias"] = dict(random.sample(list(BODY["logit_bias"].items()), 2))  # type: ignore[attr-defined]
        assert key(shuffled) == key(BODY)


def served(**facts: Any) -> Any:
    return server(deployment=replace(DEPLOYMENT, served={**DEPLOYMENT.served, **facts}))


ADAPTED = {"adapters_sha256": {"formal": "1", "rude": "2"}}


def test_tenants_engines_templates_adapters_and_settings_never_share_an_entry() -> None:
    template = server(text=replace(ModelText.unknown(), digest="2"))
    changes: list[dict[str, Any]] = [
        {},
        {"tenant": "other"},
        {"routes": "r2"},
        {"server": server(deployment=replace(DEPLOYMENT, build="b2"))},
        {"server": server(deployment=replace(DEPLOYMENT, version="2"))},
        {"server": served(max_seq_len=64)},
        {"server": template},
        {"server": served(**ADAPTED), "model": "formal"},
        {"server": served(**ADAPTED), "model": "rude"},
        {"server": served(adapters_sha256={"formal": "3"}), "model": "formal"},
        *({"settings": GatewaySettings((), **{name: value})} for name, value in SETTINGS.items()),
    ]
    keys = [key(BODY, **change) for change in changes]
    assert None not in keys
    assert len(set(keys)) == len(changes)


SETTINGS: dict[str, Any] = {"default_max_tokens": 9, "tool_call_parser": "none", "reasoning_parser": "none"}


@pytest.mark.parametrize(
    ("body", "changes"),
    [
        ({"temperature": 1}, {}),
        ({}, {"server": served(sampling={"temperature": 1.0})}),
        ({}, {"server": served(sampling={})}),
        ({}, {"server": server(deployment=None)}),
        ({}, {"server": server(deployment=replace(DEPLOYMENT, build=None))}),
        ({}, {"server": server(ready=False)}),
        ({}, {"model": "loaded-later"}),
        ({"messages": [{"role": "user", "content": "x" * 2**20}]}, {}),
    ],
    ids=["sampled", "sampled-model", "unknown-default", "unknown", "no-build", "not-ready", "adapter", "long"],
)
def test_answers_that_are_no_function_of_what_is_known_have_no_entry(body: dict[str, Any], changes: Any) -> None:
    assert key({**BODY, **body}, **changes) is None
    assert key({**BODY, "temperature": 1, "seed": 5}) is not None
