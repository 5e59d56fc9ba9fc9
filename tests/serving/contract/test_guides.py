"""What guides hold an answer to its form, and which are refused."""

from __future__ import annotations

import json
import re

import pytest

from inflight.deploy.server.server import Server
from tests.serving.model_replies import DIRECT, MODELS, TEXT_MODELS, ask, prompt_for, refusal, text_of, whole
from tests.serving.raw_requests import generate

PROMPT = "The quick brown fox"


def guided(server: Server, model: str, guide_type: str, guide: str | None = None, count: int = 60) -> str:
    """The text of an answer that a guide holds to its form."""
    guides = {"guided_decoding_guide_type": guide_type, "guided_decoding_guide": guide}
    values = {name: value for name, value in guides.items() if value is not None}
    found = ask(server, model, prompt_for(server, model, "Product: "), count, stream=True, **values)
    ids = whole(found, model)
    text: str = ids if model != DIRECT else text_of(server.engine, tuple(ids))
    return text


@pytest.mark.parametrize("model", MODELS)
def test_a_regex_holds_the_answer_to_its_form(demo_server: Server, model: str) -> None:
    assert re.fullmatch(r"[0-9]{3}-[a-c]{2}", guided(demo_server, model, "regex", r"[0-9]{3}-[a-c]{2}"))


@pytest.mark.parametrize("model", MODELS)
def test_a_grammar_holds_the_answer_to_its_form(demo_server: Server, model: str) -> None:
    text = guided(demo_server, model, "ebnf_grammar", 'root ::= "<" word ">"\nword ::= "yes" | "no"')
    assert text in ("<yes>", "<no>")


@pytest.mark.parametrize("model", MODELS)
def test_a_schema_holds_the_answer_to_its_form(demo_server: Server, model: str) -> None:
    # Between the parts of an object any blanks may be, and this model writes nothing else there.
    assert guided(demo_server, model, "json_schema", json.dumps({"enum": ["red", "blue"]})) in ('"red"', '"blue"')


@pytest.mark.parametrize("model", MODELS)
def test_json_needs_no_guide(demo_server: Server, model: str) -> None:
    assert guided(demo_server, model, "json", count=20).lstrip()[0] in "[{"


@pytest.mark.parametrize("model", MODELS)
def test_a_guide_that_is_none_is_refused(demo_server: Server, model: str) -> None:
    guides = {"guided_decoding_guide_type": "json_schema", "guided_decoding_guide": "{not json"}
    error = refusal(demo_server, model, prompt_for(demo_server, model, PROMPT), 4, **guides)
    assert "guided_decoding_guide" in error
    assert "[invalid_parameter]" in error


@pytest.mark.parametrize("model", MODELS)
def test_a_guide_that_nothing_reads_is_refused(paced_server: Server, model: str) -> None:
    """A client that sends one means a schema, and would get any JSON."""
    guides = {"guided_decoding_guide_type": "json", "guided_decoding_guide": json.dumps({"enum": ["red"]})}
    error = refusal(paced_server, model, prompt_for(paced_server, model, PROMPT), 4, **guides)
    assert "guided_decoding_guide_type json takes no guided_decoding_guide; json_schema does" in error


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_guides_over_http(demo_server: Server, model: str) -> None:
    body = {"text_input": PROMPT, "max_tokens": 20, "bad_words": "", "stop_words": "", "exclude_input_in_output": True}
    guides = {"guided_decoding_guide_type": "regex", "guided_decoding_guide": "(a|b)"}
    status, answer = generate(demo_server.http_address, {**body, **guides}, model)
    assert status == 200
    assert answer["text_output"] in ("a", "b")
