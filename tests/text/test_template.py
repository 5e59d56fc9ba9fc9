from __future__ import annotations

import importlib.metadata
import json
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import tomllib
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.requirements import Requirement
from tokenizers import Tokenizer

from inflight.common.request_error import RequestError
from inflight.text.chat_template import ChatRenderer
from inflight.text.message_json import parse_messages
from tests.fixtures.engines import ROOT
from tests.fixtures.errors import raises
from tests.text.template_examples import CHATML, PHI3, STYLES, write_directory

SYSTEM = {"role": "system", "content": "Be short."}
USER = {"role": "user", "content": "  Tea, <|im_end|> or “чай”?\n"}
ANSWER = {"role": "assistant", "content": "Tea. "}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"type": "function", "function": {"name": "brew", "arguments": {"grams": 3.5, "what": "чай <b>"}}}],
}
TOOL = {"type": "function", "function": {"name": "brew", "description": "Makes 'tea' & more", "parameters": {}}}

Style = Callable[[str], tuple[Any, ChatRenderer]]


@pytest.fixture(scope="module")
def style(tmp_path_factory: pytest.TempPathFactory) -> Style:
    """`style("chatml")`: the tokenizer of transformers, and our renderer, of a directory with that template."""
    from transformers import AutoTokenizer

    made: dict[str, tuple[Any, ChatRenderer]] = {}

    def find(name: str) -> tuple[Any, ChatRenderer]:
        if name not in made:
            directory = write_directory(
                tmp_path_factory.mktemp(name), STYLES[name], additional_special_tokens=["<|end|>"]
            )
            made[name] = AutoTokenizer.from_pretrained(directory), renderer_of(directory)
        return made[name]

    return find


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


def renderer_of(directory: Path) -> ChatRenderer:
    renderer = ChatRenderer.from_directory(directory)
    assert renderer is not None
    return renderer


def ids_of(tokenizer: Any, text: str) -> list[int]:
    backend: Tokenizer = tokenizer.backend_tokenizer
    ids: list[int] = backend.encode(text, add_special_tokens=False).ids
    return ids


@pytest.mark.parametrize("chat", [[USER], [SYSTEM, USER], [USER, ANSWER, USER], [SYSTEM, USER, ANSWER, USER]])
@pytest.mark.parametrize("name", STYLES)
def test_messages_become_the_tokens_that_transformers_makes_of_them(style: Style, name: str, chat: list[Any]) -> None:
    tokenizer, renderer = style(name)
    if name == "gemma" and chat[0]["role"] == "system":
        with raises(RequestError, "invalid_messages", naming="System role not supported"):
            renderer.render(chat)
        return
    expected = tokenizer.apply_chat_template(chat, tokenize=True, add_generation_prompt=True, return_dict=False)
    assert ids_of(tokenizer, renderer.render(chat)) == expected
    if name in ("llama3", "mistral", "gemma"):
        assert expected.count(tokenizer.bos_token_id) == 1
    closed = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=False)
    assert renderer.render(chat, add_generation_prompt=False) == closed


@pytest.mark.parametrize("name", ["chatml", "all_tricks"])
def test_tools_calls_and_documents_are_given_to_the_template(style: Style, name: str) -> None:
    tokenizer, renderer = style(name)
    chat: list[Any] = [SYSTEM, USER, CALL, {"role": "tool", "content": "brewed"}, {"role": "hidden", "content": "x"}]
    chat = chat if name == "chatml" else [message for message in chat if message is not CALL]
    given = {"tools": [TOOL], "documents": [{"title": "Té", "text": "…"}], "enable_thinking": False}
    expected = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True, **given)
    assert renderer.render(chat, **given) == expected
    assert "brew" in expected


@pytest.mark.parametrize("name", ["chatml", "llama3", "phi3"])
@pytest.mark.parametrize("said", ["The answer", "  The answer is \n", [{"type": "text", "text": "It is"}]])
def test_the_last_message_is_continued_as_transformers_does(style: Style, name: str, said: Any) -> None:
    tokenizer, renderer = style(name)
    if isinstance(said, list):
        tokenizer, renderer = style("all_tricks")
    chat = [USER, {"role": "assistant", "content": said}]
    expected = tokenizer.apply_chat_template(chat, tokenize=False, continue_final_message=True)
    assert renderer.render(chat, continue_final_message=True) == expected


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(["chatml", "llama3", "phi3", "all_tricks"]),
    chat=st.lists(
        st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system"]), "content": TEXTS}),
        min_size=1,
        max_size=4,
    ),
)
def test_any_content_becomes_the_same_tokens(style: Style, name: str, chat: list[Any]) -> None:
    tokenizer, renderer = style(name)
    expected = tokenizer.apply_chat_template(chat, tokenize=True, add_generation_prompt=True, return_dict=False)
    assert ids_of(tokenizer, renderer.render(parse_messages(json.dumps(chat).encode()))) == expected


NAMED = [{"name": "default", "template": "plain {{ messages[0].content }}"}, {"name": "tool_use", "template": "tools"}]
ADDED = {"__type": "AddedToken", "content": "<s>", "lstrip": False, "normalized": False, "special": True}


@pytest.mark.parametrize(
    ("settings", "map_file", "files"),
    [
        ({"chat_template": PHI3}, None, {}),
        ({"chat_template": NAMED}, None, {}),
        ({"chat_template": "old"}, None, {"chat_template.jinja": "new {{ bos_token }}{{ eos_token }}"}),
        ({}, None, {"chat_template.jinja": "one", "additional_chat_templates/tool_use.jinja": "two {{ tools }}"}),
        (
            {"bos_token": ADDED, "chat_template": "{{ bos_token }}|{{ unk_token }}"},
            None,
            {},
        ),
        (
            {
                "chat_template": "{{ bos_token }}|{{ image_token }}",
                "extra_special_tokens": {"image_token": "<|end|>"},
                "added_tokens_decoder": {"0": {"content": "<s>", "special": True}},
            },
            {"bos_token": "<|end|>"},
            {},
        ),
    ],
    ids=["in-config", "named", "file-first", "files", "added-token", "extra-tokens"],
)
@pytest.mark.parametrize("tools", [None, [TOOL]])
def test_templates_and_special_tokens_are_found_where_transformers_finds_them(
    tmp_path: Path, settings: dict[str, Any], map_file: Any, files: dict[str, str], tools: Any
) -> None:
    from transformers import AutoTokenizer

    directory = write_directory(tmp_path / "checkpoint", **settings)
    if map_file is not None:
        (directory / "special_tokens_map.json").write_text(json.dumps(map_file))
    for name, content in files.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(content)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    expected = tokenizer.apply_chat_template([USER], tools=tools, tokenize=False, add_generation_prompt=True)
    renderer = renderer_of(directory)
    assert renderer.render([USER], tools=tools) == expected
    assert renderer.bos_token == tokenizer.bos_token


@pytest.mark.parametrize(
    ("settings", "map_file", "expected"),
    [
        (
            {},
            {"bos_token": {"content": "<a>"}, "additional_special_tokens": ["<b>", {"content": "<c>"}]},
            "<a>|<b>,<c>",
        ),
        ({"additional_special_tokens": ["<b>"]}, None, "<s>|<b>"),
        ({"extra_special_tokens": ["<b>", "<c>"]}, None, "<s>|<b>,<c>"),
    ],
    ids=["file-of-old", "transformers-4", "transformers-5"],
)
def test_further_special_tokens_are_found_under_every_name(
    tmp_path: Path, settings: dict[str, Any], map_file: Any, expected: str
) -> None:
    template = "{{ bos_token }}|{{ additional_special_tokens | join(',') }}"
    directory = write_directory(tmp_path, chat_template=template, **settings)
    if map_file is not None:
        (directory / "special_tokens_map.json").write_text(json.dumps(map_file))
    assert renderer_of(directory).render([USER]) == expected


def test_a_template_is_chosen_by_its_name(tmp_path: Path) -> None:
    renderer = renderer_of(write_directory(tmp_path, chat_template=NAMED))
    assert renderer.render([USER], chat_template="tool_use") == "tools"
    with raises(RequestError, "invalid_messages", naming=("default", "tool_use")):
        renderer.render([USER], chat_template="{{ 1 }}")


def test_a_directory_without_a_template_has_no_renderer(tmp_path: Path) -> None:
    assert ChatRenderer.from_directory(write_directory(tmp_path)) is None
    assert ChatRenderer.from_directory(tmp_path / "nowhere") is None


@pytest.mark.parametrize(
    ("template", "settings", "words"),
    [
        ("{% if %}", {}, "compiled"),
        ("{{ 1 }}" * 200_000, {}, "1048576"),
        (None, {"chat_template": [{"name": "x", "template": "{% endfor %}"}]}, "compiled"),
    ],
)
def test_a_template_that_is_none_is_told(
    tmp_path: Path, template: str | None, settings: dict[str, Any], words: str
) -> None:
    with raises(RequestError, "no_chat_template", naming=words):
        ChatRenderer.from_directory(write_directory(tmp_path, template, **settings))


@pytest.mark.parametrize(
    ("settings", "map_file"),
    [
        *(({"chat_template": wrong}, None) for wrong in ([1], 5, {"default": None}, "\ud800")),
        ({"chat_template": [{"name": [], "template": "x"}]}, None),
        ({"chat_template": "x", "additional_special_tokens": 5}, None),
        ({"chat_template": "{{ " + "(" * 5000 + ")" * 5000 + " }}"}, None),
        ({"chat_template": "x"}, '{"additional_special_tokens": 3}'),
        (None, None),
    ],
)
def test_a_configuration_that_is_damaged_or_of_wrong_types_is_told(
    tmp_path: Path, settings: dict[str, Any] | None, map_file: str | None
) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{" if settings is None else json.dumps(settings))
    if map_file is not None:
        (tmp_path / "special_tokens_map.json").write_text(map_file)
    with raises(RequestError, "no_chat_template"):
        ChatRenderer.from_directory(tmp_path)


def test_a_jinja2_whose_sandbox_leaks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("3.0", "3.1.5", "2.11.3"):
        monkeypatch.setattr(importlib.metadata, "version", lambda package, version=version: version)
        with raises(RequestError, "no_chat_template"):
            ChatRenderer({"default": CHATML}, {})
    for version in ("3.1.6", "3.1.10", "4.0.0rc1"):
        monkeypatch.setattr(importlib.metadata, "version", lambda package, version=version: version)
        assert ChatRenderer({"default": "{{ messages | length }}"}, {}).render([USER]) == "1"


def test_no_jinja2_whose_sandbox_leaks_is_asked_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    asked = [Requirement(line).specifier for line in lines if line.startswith("jinja2")]
    assert len(asked) == 5
    assert not any(versions.contains("3.1.5") for versions in asked)


def test_without_jinja2_messages_are_refused_by_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    monkeypatch.delitem(sys.modules, "inflight.text.sandbox", raising=False)
    with raises(RequestError, "no_chat_template", naming="jinja2"):
        ChatRenderer.from_directory(write_directory(tmp_path, CHATML))


@pytest.mark.parametrize(
    ("messages", "kwargs", "words"),
    [
        ([], {}, "messages"),
        ([{"content": "x"}], {}, ("message 0", "role")),
        ([USER, "x"], {}, ("message 1", "role")),
        ([USER], {"tools": {}}, "tools"),
        ([USER], {"documents": ["x"]}, "documents"),
        ([USER], {"messages": []}, "messages"),
        (
            [USER],
            {"continue_final_message": True, "add_generation_prompt": True},
            "add_generation_prompt",
        ),
        ([USER, CALL], {"continue_final_message": True}, "continue"),
        ([{"role": "user"}], {}, "chat template"),
        ([{"role": "user", "content": "\ud800"}], {}, "Unicode"),
        ([{"role": "user", "content": object()}], {}, "JSON"),
        ([{"role": "user", "content": "x" * 17_000_000}], {}, "16777216"),
        ([USER], {"tools": [{"a": nested(63)}]}, ("chat_template_kwargs", "64")),
        ([{"role": "user", "content": nested(5000)}], {}, ()),
        ([USER], {"x": [0] * 300_000}, "chat_template_kwargs"),
    ],
)
def test_what_can_not_be_rendered_is_refused_by_one_sentence(
    style: Style, messages: Any, kwargs: dict[str, Any], words: str
) -> None:
    with raises(RequestError, "invalid_messages", naming=words) as refusal:
        style("chatml")[1].render(messages, **kwargs)
    assert "\n" not in str(refusal.value)


def test_the_messages_of_the_caller_stay_as_they_are(style: Style) -> None:
    chat = [dict(USER), {"role": "assistant", "content": "It"}]
    style("chatml")[1].render(chat, continue_final_message=True)
    assert chat == [USER, {"role": "assistant", "content": "It"}]
