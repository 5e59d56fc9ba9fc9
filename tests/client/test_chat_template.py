"""The client renders messages for servers that take text, to the tokens that transformers makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from inflight_client.call import Call
from inflight_client.chat_template import ChatTemplate
from inflight_client.deployments.requests import build_request
from inflight_client.errors import InflightError

from tests.client.support.deployments import find
from tests.fixtures.errors import raises
from tests.standins.kserve.repository import llmapi, text_models
from tests.text.template_examples import CHATML, LLAMA3, MISTRAL, write_directory

CHAT = [
    {"role": "user", "content": "Tea?"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "Now."},
]

TOKENIZERS: dict[str, dict[str, Any]] = {
    "as tokenizer.json says": {},
    "as tokenizer.json says in a row": {"processor": "Sequence"},
    "without a rule": {"processor": None},
    "another's, whose setting says nothing": {"tokenizer_class": "GPT2TokenizerFast", "add_bos_token": False},
}


def directory_of(place: Path, template: str | None, processor: str | None = "", **settings: Any) -> Path:
    """A tokenizer's directory; `processor` is how tokenizer.json puts BOS before a text."""
    write_directory(place, template, **settings)
    file = place / "tokenizer.json"
    said = json.loads(file.read_text())
    if processor is None:
        said["post_processor"] = None
    elif processor == "Sequence":
        byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
        said["post_processor"] = {"type": "Sequence", "processors": [byte_level, said["post_processor"]]}
    file.write_text(json.dumps(said))
    return place


def tokenizer_of(directory: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(directory)


@pytest.mark.parametrize("settings", TOKENIZERS.values(), ids=TOKENIZERS)
def test_a_server_makes_the_right_tokens_of_the_text(tmp_path: Path, settings: dict[str, Any]) -> None:
    directory = directory_of(tmp_path / "tokenizer", LLAMA3, **settings)
    tokenizer = tokenizer_of(directory)
    found = ChatTemplate.from_directory(directory)
    expected = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    assert expected.count(tokenizer.bos_token_id) == 1
    for adds in (True, False, None):
        sent = found.without_bos(found.render(CHAT), adds)
        assert tokenizer(sent, add_special_tokens=adds is not False).input_ids == expected


@pytest.mark.parametrize(
    ("settings", "adds"),
    [
        ({"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": True, "processor": None}, True),
        ({"tokenizer_class": "LlamaTokenizer", "processor": None}, True),
        ({"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": False}, False),
    ],
    ids=["with", "by default", "without"],
)
def test_a_server_with_transformers_4_follows_the_setting_of_a_llama(
    tmp_path: Path, settings: dict[str, Any], adds: bool
) -> None:
    found = ChatTemplate.from_directory(directory_of(tmp_path / "tokenizer", LLAMA3, **settings))
    rendered = found.render(CHAT)
    assert found.without_bos(rendered, None) == (rendered.removeprefix("<s>") if adds else rendered)
    assert rendered.startswith("<s>")


def test_a_template_without_bos_keeps_all_of_its_text(tmp_path: Path) -> None:
    found = ChatTemplate.from_directory(directory_of(tmp_path / "tokenizer", CHATML))
    text = found.render(CHAT)
    assert found.without_bos(text, True) == text


@pytest.mark.parametrize("models", [text_models(), text_models(without=("ensemble",)), llmapi()])
def test_deployments_that_render_nothing_get_text(tmp_path: Path, models: Any) -> None:
    template = ChatTemplate.from_directory(directory_of(tmp_path / "tokenizer", MISTRAL))
    request = build_request(find(models), Call(CHAT, False), None, template)
    assert request.inputs["text_input"].values == ("[INST] Tea? [/INST] Yes.</s>[INST] Now. [/INST]",)
    assert "messages" not in request.inputs


def test_where_preprocessing_adds_no_special_tokens_the_text_begins_with_bos(tmp_path: Path) -> None:
    template = ChatTemplate.from_directory(directory_of(tmp_path / "tokenizer", MISTRAL))
    request = build_request(find(text_models(add_special_tokens="false")), Call(CHAT, False), None, template)
    assert str(request.inputs["text_input"].values[0]).startswith("<s>[INST]")


def test_what_the_template_is_given_beside_the_messages_reaches_it(tmp_path: Path) -> None:
    template = ChatTemplate.from_directory(directory_of(tmp_path / "tokenizer", CHATML))
    call = Call(CHAT, False, chat_template_kwargs={"enable_thinking": False})
    text = build_request(find(text_models()), call, None, template).inputs["text_input"].values[0]
    assert str(text).endswith("<think>\n\n</think>\n\n")


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}], "roles must alternate"),
        ([{"role": "user"}], "content"),
    ],
)
def test_messages_that_the_template_refuses_are_the_callers_fault(
    tmp_path: Path, messages: list[Any], words: str
) -> None:
    template = ChatTemplate.from_directory(directory_of(tmp_path / "tokenizer", MISTRAL))
    with raises(InflightError, "invalid_messages", naming=words):
        build_request(find(text_models()), Call(messages, False), None, template)


def test_a_directory_without_a_template_is_refused(tmp_path: Path) -> None:
    for place in (directory_of(tmp_path / "tokenizer", None), tmp_path / "nowhere"):
        with raises(InflightError, "no_chat_template"):
            ChatTemplate.from_directory(place)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    place = directory_of(tmp_path / "tokenizer", MISTRAL)
    for damaged in ("{", "[" * 200_000):
        (place / "tokenizer.json").write_text(damaged)
        with raises(InflightError, "no_chat_template", naming="tokenizer.json"):
            ChatTemplate.from_directory(place)
