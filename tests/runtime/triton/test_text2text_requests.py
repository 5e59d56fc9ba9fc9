"""What the model `text2text` reads: the tokens around a text, its target language, and how its answer is decoded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from inflight.common.request_error import RequestError
from inflight.runtime.encoders.encoder import EncoderInput
from inflight.runtime.encoders.manifest import Seq2SeqDescription, TextDescription
from inflight.runtime.encoders.source_text import SourceText
from inflight.runtime.encoders.tokenize import PlainText
from inflight.runtime.triton.encoders.text2text import Text2Text
from tests.runtime.speech.whisper_tokens import word_tokenizer
from tests.runtime.triton.request_inputs import inputs_of

TEXT = TextDescription(
    before=("__en__",),
    after=("</s>",),
    prefix=("<s>",),
    language_token="__{}__",
    source_language="en",
    target_language_in="prefix",
    prompts={"summary": "summarize: "},
    defaults={"beam_size": 4, "no_repeat_ngram_size": 3},
    prompt_defaults={"summary": {"beam_size": 2, "length_penalty": 2.0}},
)


def read(text: TextDescription = TEXT, **inputs: Any) -> SourceText | RequestError:
    """Read the text " b c" with these inputs; return what the engine gets."""
    manifest = Seq2SeqDescription("ctranslate2", "text2text", 64, 64, 100, 0, ("en", "de"), {}, text)
    tokenizer = word_tokenizer()
    arrays = {name: np.array([[value]]) for name, value in inputs.items()}
    request = Text2Text(manifest, text, tokenizer).read(inputs_of(text_input=np.array([[b" b c"]], object), **arrays))
    (plain,) = request.texts
    if isinstance(plain, RequestError):
        return plain
    assert isinstance(plain, PlainText)
    source = request.ready(0, EncoderInput(np.array(tokenizer.encode(plain.text[-4:], add_special_tokens=False).ids)))
    assert isinstance(source, SourceText)
    return source


@pytest.mark.parametrize(
    ("place", "target", "tokens", "prefix"),
    [
        ("prefix", b"", "__en__ b c </s>", "<s>"),
        ("prefix", b"de", "__en__ b c </s>", "__de__ <s>"),
        ("prefix", b"__de__", "__en__ b c </s>", "__de__ <s>"),
        ("before", b"de", "__de__ __en__ b c </s>", "<s>"),
    ],
)
def test_a_text_has_the_models_tokens_around_it(place: str, target: bytes, tokens: str, prefix: str) -> None:
    source = read(replace(TEXT, target_language_in=place), target_prefix=target)
    assert isinstance(source, SourceText)
    assert [token.removeprefix("\u0120") for token in source.tokens] == tokens.split()
    assert list(source.prefix) == prefix.split()


def test_a_language_replaces_the_one_that_the_model_begins_with() -> None:
    source = read(replace(TEXT, prefix=("__en__",)), target_prefix=b"de")
    assert isinstance(source, SourceText)
    assert source.prefix == ("__de__",)


@pytest.mark.parametrize("language", [b"de", b"__de__"])
def test_the_language_of_a_text_is_in_the_place_of_the_tokenizers(language: bytes) -> None:
    text = replace(TEXT, before=(), after=("</s>", "__en__"))
    source = read(text, source_language=language, target_prefix=b"en")
    assert isinstance(source, SourceText)
    assert source.tokens[-2:] == ("</s>", "__de__")
    assert source.prefix[0] == "__en__"
    unknown = read(replace(text, source_language=None), source_language=language)
    assert isinstance(unknown, RequestError)
    assert unknown.code == "unsupported_input"


def test_the_settings_of_the_prompt_and_of_the_model_count_where_the_request_names_none() -> None:
    plain, asked, prompted = read(), read(beam_width=2, max_tokens=9), read(target_prefix=b"summary", beam_width=3)
    assert isinstance(plain, SourceText)
    assert isinstance(asked, SourceText)
    assert isinstance(prompted, SourceText)
    usual = {"no_repeat_ngram_size": 3, "min_decoding_length": 0}
    assert dict(plain.decoding) == {**usual, "beam_size": 4, "max_decoding_length": 64}
    assert dict(asked.decoding) == {**usual, "beam_size": 2, "max_decoding_length": 9}
    assert dict(prompted.decoding) == {**usual, "beam_size": 3, "length_penalty": 2.0, "max_decoding_length": 64}
    assert asked.group != plain.group


def test_the_models_own_lengths_give_way_to_the_requests_and_the_decoders() -> None:
    text = replace(TEXT, defaults={"min_decoding_length": 30, "max_decoding_length": 900})
    usual, short = read(text), read(text, max_tokens=9)
    assert isinstance(usual, SourceText)
    assert isinstance(short, SourceText)
    assert dict(usual.decoding) == {"min_decoding_length": 30, "max_decoding_length": 64}
    assert dict(short.decoding) == {"min_decoding_length": 9, "max_decoding_length": 9}


@pytest.mark.parametrize(
    ("inputs", "code"),
    [
        ({"target_prefix": b"fr"}, "unsupported_input"),
        ({"source_language": b"fr"}, "unsupported_input"),
        ({"beam_width": 0}, "invalid_parameter"),
        ({"max_tokens": 65}, "invalid_parameter"),
        ({"length_penalty": float("nan")}, "invalid_parameter"),
        ({"target_prefix": b"\xff"}, "invalid_text"),
    ],
)
def test_a_text_with_a_wrong_option_is_refused(inputs: dict[str, Any], code: str) -> None:
    error = read(**inputs)
    assert isinstance(error, RequestError)
    assert error.code == code
