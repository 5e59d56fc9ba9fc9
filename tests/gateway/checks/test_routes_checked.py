"""Every route takes its answers through the checks, whole or streamed, however the model's text is cut into pieces."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from inflight.openai_api.errors import ApiError
from tests.fixtures.errors import raises
from tests.gateway.checks.planted import CHECKS, Planted, planted
from tests.gateway.checks.scripted import BREW, TOOLS, ScriptedGateway, read

MESSAGES = [{"role": "user", "content": "tea?"}]
CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
ROUTES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {"messages": MESSAGES, "logprobs": True}),
    "completions": (COMPLETIONS, {"prompt": "tea?", "n": 2, "logprobs": 1}),
    "responses": (RESPONSES, {"input": "tea?"}),
    "tools": (CHAT, {"messages": MESSAGES, "tools": TOOLS}),
    "responses-tools": (RESPONSES, {"input": "tea?", "tools": [{"type": "function", **BREW}]}),
    "reasoning": (CHAT, {"messages": MESSAGES}),
    "echo": (COMPLETIONS, {"echo": True}),
}


def pieces_of(text: str, luck: random.Random) -> Sequence[str]:
    cuts = sorted(luck.sample(range(1, len(text)), min(len(text) - 1, luck.randrange(9))))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def script(route: str, text: str) -> str:
    """What a model writes so that this text is in the answer."""
    if "tools" in route:
        called = json.dumps({"name": "brew", "arguments": {"note": text}}, ensure_ascii=len(text) % 2 == 0)
        return f"<tool_call>\n{called}\n</tool_call>"
    return f"<think>{text}</think>ok" if route == "reasoning" else text


async def check_texts(gateway: ScriptedGateway, route: str, texts: Sequence[Planted], splits: int) -> int:
    luck, count = random.Random(7), 0
    path, body = ROUTES[route]
    for each in texts:
        written = script(route, each.text)
        for number in range(splits):
            pieces = list(written) if number == 0 else pieces_of(written, luck)
            for stream in (False, True):
                asked = body | {"stream": stream} | ({"prompt": each.text} if route == "echo" else {})
                answer = await gateway.post(path, asked, pieces)
                got = read(answer)
                assert got["finish"] in ("stop", "tool_calls"), got
                shown = [value for name, value in got.items() if name != "finish"]
                shown += [json.loads(got["arguments"])["note"]] if got["arguments"] else []
                assert not any(each.is_in(text) for text in shown), (route, each, pieces, answer)
                assert any("[" in text for text in shown), (route, each, pieces, answer)
                count += 1
    return count


@pytest.mark.parametrize("route", ROUTES)
def test_what_is_planted_in_an_answer_is_never_sent(tmp_path: Path, route: str) -> None:
    gateway = ScriptedGateway(tmp_path, CHECKS)
    assert asyncio.run(check_texts(gateway, route, list(planted(20)), 2)) == 80


@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES)
def test_two_thousand_planted_texts_are_never_sent(tmp_path: Path, route: str) -> None:
    gateway = ScriptedGateway(tmp_path, CHECKS)
    assert asyncio.run(check_texts(gateway, route, list(planted(2000, seed=3)), 5)) == 20_000


def ask(
    folder: Path, checks: Sequence[dict[str, Any]], pieces: Sequence[str], **body: Any
) -> tuple[ScriptedGateway, str]:
    gateway = ScriptedGateway(folder, checks)
    return gateway, asyncio.run(gateway.post(path_of(body), with_messages(body), pieces))


def path_of(body: dict[str, Any]) -> str:
    return RESPONSES if "input" in body else COMPLETIONS if "prompt" in body else CHAT


def with_messages(body: dict[str, Any]) -> dict[str, Any]:
    return {"messages": MESSAGES} | body if path_of(body) == CHAT else body


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("body", [{}, {"prompt": "tea?", "n": 2}, {"input": "tea?"}, {"logprobs": True}])
def test_a_blocked_answer_ends_before_what_is_denied(tmp_path: Path, body: dict[str, Any], stream: bool) -> None:
    checks = [{"kind": "deny", "words": ["hemlock"], "at": "after"}]
    gateway, answer = ask(tmp_path, checks, ["A cup of hem", "lock", " tea", *" and more"], stream=stream, **body)
    got = read(answer)
    n = body.get("n", 1)
    assert (got["text"], got["finish"], got["logprobs"]) == ("A cup of " * n, "content_filter", "")
    if n == 1:
        assert gateway.sent == 3  # the model need not go on
    assert gateway.request is not None
    assert gateway.request.outcome.checks == ["deny=block"]
    assert gateway.request.outcome.finish_reasons == dict.fromkeys(range(n), "content_filter")


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_of_an_answer_that_nothing_has_changed_are_all_there(tmp_path: Path, stream: bool) -> None:
    _, answer = ask(tmp_path, CHECKS, ["A ", "forb", "idding", " cup"], logprobs=True, stream=stream)
    assert read(answer)["logprobs"] == read(answer)["text"] == "A forbidding cup"


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "say HEMLOCK"}]}]},
        {"messages": [*MESSAGES, {"role": "tool", "tool_call_id": "1", "content": "hem\u200block"}]},
        {"prompt": ["tea", "ｈｅｍｌｏｃｋ"]},
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "hemlock?"}]}]},
        {"input": "tea?", "instructions": "Brew hemlock."},
        {"tools": [{"type": "function", "function": {"name": "brew", "description": "hemlock"}}]},
        {"chat_template_kwargs": {"documents": [{"a hemlock": 1}]}},
        {"chat_template_kwargs": {"role": "hemlock"}},
        {"messages": [{"role": "hemlock", "content": "tea?"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": each} for each in ("death", "cap")]}]},
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": each} for each in ("death", "cap")]}]},
        {"messages": [*MESSAGES, {"role": "assistant", "content": "hem\0lock"}]},  # the model gets it without NUL
        {"input": "tea?", "reasoning": {"effort": "hemlock"}},
        {"input": "tea?", "metadata": {"type": "hemlock"}},
        {"input": "tea?", "metadata": {"hemlock": "tea"}},
        *(
            {"tools": [{"type": "function", "function": {"name": "brew", "parameters": {"properties": each}}}]}
            for each in (
                {"role": {"type": "string", "description": "hemlock"}},
                {"type": {"enum": ["hemlock"]}},
                {"kind": {"type": ["string", "hemlock"]}},
                {"hemlock": {"type": "string"}},
            )
        ),
        {
            "messages": [
                *MESSAGES,
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"id": "1", "function": {"name": "brew", "arguments": '{"a": "\\u0068emlock"}'}}],
                },
            ]
        },
    ],
)
def test_a_request_is_refused_wherever_it_has_what_is_denied(tmp_path: Path, body: dict[str, Any]) -> None:
    gateway = ScriptedGateway(tmp_path, [{"kind": "deny", "name": "plants", "words": ["hemlock", "death cap"]}])
    with raises(ApiError, "content_filter", naming="plants"):
        asyncio.run(gateway.post(path_of(body), with_messages(body), ["ok"]))
    assert gateway.request is not None
    assert gateway.request.outcome.prompt is None  # for the audit log
    assert not gateway.prompts


def test_a_request_reaches_the_model_without_what_is_redacted_and_comes_back_so(tmp_path: Path) -> None:
    checks = [{"kind": "pii", "at": "before"}]
    number = 4111111111111111
    call = {"type": "function_call", "call_id": "1", "name": "brew", "arguments": json.dumps({"n": number})}
    items = [{"role": "user", "content": f"pay {number}"}, call]
    gateway, answer = ask(tmp_path, checks, ["ok"], input=items, instructions="a@b.example")
    assert str(number) not in json.dumps(gateway.prompts)
    assert gateway.prompts[0][1]["content"] == "pay [card]"
    assert gateway.prompts[0][2]["tool_calls"][0]["function"]["arguments"] == {"n": "[card]"}
    assert json.loads(answer)["instructions"] == "[email]"
    assert gateway.request is not None
    assert str(number) not in str(gateway.request.outcome.prompt)
    assert "[card]" in str(gateway.request.outcome.prompt)


def test_words_of_the_protocol_are_no_texts(tmp_path: Path) -> None:
    words = ["user", "function", "type", "parameters", "properties", "string", "text", "messages", "role", "name"]
    part = {"type": "text", "text": "tea?"}
    tools = [{"type": "function", "function": BREW | {"parameters": {"type": "object", "properties": {}}}}]
    body = {"messages": [{"role": "user", "content": [part, part]}], "tools": tools}
    gateway, answer = ask(tmp_path, [{"kind": "deny", "words": words, "at": "before"}], ["ok"], **body)
    assert read(answer)["text"] == "ok"
    gateway, _ = ask(tmp_path, [{"kind": "deny", "words": ["tea"], "action": "redact"}], ["ok"], **body)
    assert gateway.prompts[0][0]["content"] == "[deny]?\n[deny]?"


def test_what_takes_too_long_to_search_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inflight.gateway.checks.text_gate._MAX_TRIES", 100)
    with raises(ApiError, "content_filter"):
        ask(tmp_path, [{"kind": "pii", "at": "before"}], ["ok"], prompt="44 " * 500)


def test_what_can_t_be_read_is_refused(tmp_path: Path) -> None:
    with raises(ApiError, "unsupported_input", naming="prompt"):
        ask(tmp_path, [{"kind": "pii", "at": "before"}], ["ok"], prompt=[1, 2, 3])


@pytest.mark.parametrize(
    ("check", "text", "finish"),
    [
        ({"kind": "size", "max_characters": 6, "at": "after"}, "A cup ", "content_filter"),
        ({"kind": "size", "max_characters": 6, "at": "after", "action": "flag"}, "A cup of tea", "stop"),
        ({"kind": "deny", "words": ["cup of"], "at": "after", "action": "flag"}, "A cup of tea", "stop"),
        ({"kind": "deny", "words": ["cup"], "models": ["other"]}, "A cup of tea", "stop"),
        ({"kind": "deny", "words": ["cup"], "models": ["tea"]}, "A ", "content_filter"),
    ],
)
def test_what_a_check_does_is_what_it_says(tmp_path: Path, check: dict[str, Any], text: str, finish: str) -> None:
    gateway, answer = ask(tmp_path, [check], ["A c", "up o", "f tea"])
    assert (read(answer)["text"], read(answer)["finish"]) == (text, finish)
    found = gateway.request.outcome.checks if gateway.request else []
    assert found == ([] if check.get("models") == ["other"] else [f"{check['kind']}={check.get('action', 'block')}"])
    page = gateway.metrics.page().decode()
    assert (f'action="{check.get("action", "block")}",at="after",check="{check["kind"]}"' in page) == bool(found)


def test_flags_hold_nothing_back(tmp_path: Path) -> None:
    check = {"kind": "deny", "words": ["cup"], "action": "flag"}
    _, answer = ask(tmp_path, [check], ["A c", "u", "p"], stream=True)
    frames = [json.loads(line[6:]) for line in answer.splitlines() if line.startswith("data: {")]
    assert [frame["choices"][0]["delta"].get("content") for frame in frames[1:-1]] == ["A c", "u", "p"]


def test_a_changed_list_applies_at_once_and_a_wrong_one_leaves_the_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inflight.gateway.routes_file.CHECK_SECONDS", 0.0)
    gateway = ScriptedGateway(tmp_path, [])

    def text() -> str:
        return str(read(asyncio.run(gateway.post(CHAT, {"messages": MESSAGES}, ["a cup"])))["text"])

    assert text() == "a cup"
    for checks in ([{"kind": "deny", "words": ["cup"], "action": "redact"}], [{"kind": "no"}]):
        gateway.file.write_text(json.dumps({"checks": checks}) + " " * len(checks[0]))
        assert text() == "a [deny]"
