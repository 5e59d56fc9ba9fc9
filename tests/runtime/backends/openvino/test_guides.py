"""Guides: whatever the model would write, the answer keeps them, and ends."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from inflight.common.request_error import RequestError
from inflight.runtime.backends.openvino.guides import Guides
from inflight.runtime.backends.openvino.sampling_state import SamplingState
from inflight.runtime.messages import DecodingGuide, FinishReason, GenerationRequest, GuideType, SamplingConfig
from inflight.text.tokenizer import load_tokenizer, vocabulary_size
from tests.runtime.backends.drive_runner import run
from tests.runtime.backends.openvino.test_batches import runner
from tests.text import example_tokenizers

END = 0
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 8},
        "score": {"type": "number", "minimum": 0, "maximum": 1},
        "kind": {"enum": ["北京", "Köln"]},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-c]{2}$"}, "maxItems": 3},
    },
    "required": ["name", "score", "kind"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tokenizer(tiny_engine: Callable[[str], Path]) -> Tokenizer:
    return load_tokenizer(str(tiny_engine("qwen2")))


@pytest.fixture(scope="module")
def guides(tokenizer: Tokenizer) -> Guides:
    return Guides(tokenizer, vocabulary_size(tokenizer), [END])


def written(guides: Guides, tokenizer: Tokenizer, guide: DecodingGuide, seed: int, end: int = END) -> str:
    """What a model with random logits writes, with a taste for white space."""
    rng, guided, ids = np.random.default_rng(seed), guides.start(guide), list[int]()
    spaces = [token for text, token in tokenizer.get_vocab().items() if not text.strip("ĠĊĉ▁ ")]
    for _ in range(400):
        logits = rng.normal(size=vocabulary_size(tokenizer)).astype(np.float32)
        logits[spaces] += 3
        logits[end] += 2
        guided.mask(logits)
        assert np.isfinite(logits).any()
        token = int(logits.argmax())
        if token == end:
            return str(tokenizer.decode(ids))
        guided.take(token)
        ids.append(token)
    raise AssertionError(f"no end: {tokenizer.decode(ids)!r}")


@pytest.mark.parametrize("seed", range(20))
def test_answers_keep_a_schema_without_white_space_to_speak_of(guides: Guides, tokenizer: Tokenizer, seed: int) -> None:
    text = written(guides, tokenizer, DecodingGuide(GuideType.JSON_SCHEMA, json.dumps(SCHEMA)), seed)
    found = json.loads(text)
    assert {"name", "score", "kind"} <= set(found) <= {"name", "score", "kind", "tags"}
    assert 1 <= len(found["name"]) <= 8
    assert 0 <= found["score"] <= 1
    assert found["kind"] in ("北京", "Köln")
    assert all(re.fullmatch("[a-c]{2}", tag) for tag in found.get("tags", ()))
    assert not re.search(r"\s\s|[\n\t]", re.sub(r'"(\\.|[^"\\])*"', "x", text))


@pytest.mark.parametrize(
    ("guide", "pattern"),
    [
        (DecodingGuide(GuideType.REGEX, "(  two|x){2} [0-9]"), "(  two|x){2} [0-9]"),
        (DecodingGuide(GuideType.EBNF_GRAMMAR, 'root ::= "yes" | "no" [0-9]{2}\n'), "yes|no[0-9]{2}"),
    ],
)
def test_answers_match_a_pattern(guides: Guides, tokenizer: Tokenizer, guide: DecodingGuide, pattern: str) -> None:
    assert {bool(re.fullmatch(pattern, written(guides, tokenizer, guide, seed))) for seed in range(10)} == {True}


@pytest.mark.parametrize("kind", example_tokenizers.KINDS)
def test_tokens_are_read_as_each_kind_of_tokenizer_spells_them(kind: str) -> None:
    tokenizer = example_tokenizers.tokenizer_of(kind)
    end = tokenizer.token_to_id(example_tokenizers.SPECIAL)
    guides = Guides(tokenizer, vocabulary_size(tokenizer), [end])
    text = written(guides, tokenizer, DecodingGuide(GuideType.REGEX, "x[ é🫲]{4}[0-9]"), 3, end)
    assert re.fullmatch("x[ é🫲]{4}[0-9]", text)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (GuideType.JSON_SCHEMA, "{"),
        (GuideType.JSON_SCHEMA, '{"type": 5}'),
        (GuideType.JSON_SCHEMA, '{"not": {}}'),
        (GuideType.JSON_SCHEMA, '{"uniqueItems": true}'),
        (GuideType.JSON_SCHEMA, '{"$ref": "#/nowhere"}'),
        (GuideType.REGEX, "(a"),
        (GuideType.REGEX, "(?=a)b"),
        (GuideType.EBNF_GRAMMAR, "root"),
        (GuideType.EBNF_GRAMMAR, "root ::= missing\n"),
    ],
)
def test_what_can_not_be_kept_is_refused_in_one_line(guides: Guides, kind: GuideType, text: str) -> None:
    with pytest.raises(RequestError) as raised:
        guides.start(DecodingGuide(kind, text))
    assert raised.value.code == "invalid_parameter"
    assert "\n" not in str(raised.value)


def test_guided_answers_end_beside_others(tiny_engine: Callable[[str], Path], tokenizer: Tokenizer) -> None:
    engine = runner(tiny_engine("qwen2"))
    guide = DecodingGuide(GuideType.JSON_SCHEMA, '{"type": "array", "items": {"type": "boolean"}, "maxItems": 4}')
    hot = SamplingConfig(temperature=2.0, top_p=1.0, seed=1)
    requests = [GenerationRequest((5, 6), 40, sampling=hot, guide=guide if place % 2 else None) for place in range(12)]
    for request, answer in zip(requests, run(engine, *requests), strict=True):
        if request.guide is not None:
            assert answer.reason is FinishReason.STOP
            assert all(isinstance(each, bool) for each in json.loads(tokenizer.decode(answer.token_ids)))


def test_the_end_of_a_guide_comes_before_min_tokens(guides: Guides, tokenizer: Tokenizer) -> None:
    guided = guides.start(DecodingGuide(GuideType.REGEX, "x"))
    guided.take(tokenizer.token_to_id("x"))
    request = GenerationRequest((5,), 9, end_ids=(END,), sampling=SamplingConfig(min_tokens=5))
    logits = np.zeros(vocabulary_size(tokenizer), np.float32)
    SamplingState(request, [tokenizer.token_to_id("x")], guided).edit(logits)
    assert np.flatnonzero(np.isfinite(logits)).tolist() == [END]


MANY = json.dumps({"anyOf": [{"type": "object", "properties": {"k": {"const": number}}} for number in range(1000)]})
DEEP = '{"type": "array", "items": ' * 300 + "{}" + "}" * 300
HOSTILE = [
    (GuideType.REGEX, "(a+)+$"),
    (GuideType.REGEX, "(?:a?){500}a{500}"),
    (GuideType.REGEX, "((a{1,100}){1,100}){1,100}"),
    (GuideType.REGEX, "(" * 2000 + "a" + ")" * 2000),
    (GuideType.JSON_SCHEMA, MANY),
    (GuideType.JSON_SCHEMA, DEEP),
    (GuideType.JSON_SCHEMA, '{"$ref": "#"}'),
    (GuideType.JSON_SCHEMA, '{"type": "string", "minLength": 9000}'),
    (GuideType.EBNF_GRAMMAR, 'root ::= root root | "a"\n'),
    (GuideType.EBNF_GRAMMAR, "root ::= " + "(" * 1000 + '"a"' + ")" * 1000 + "\n"),
    (GuideType.EBNF_GRAMMAR, "root ::= " + " | ".join(f'"k{number}" root' for number in range(2000)) + "\n"),
]


def test_hostile_guides_end_alone(tiny_engine: Callable[[str], Path]) -> None:
    """Refused, answered, or ended with an error once the compiler's limits are reached; others don't notice."""
    engine, plain = runner(tiny_engine("qwen2")), GenerationRequest(tuple(range(10, 50)), 40)
    (expected,) = run(engine, plain)
    taken, refused = [], set()
    for kind, text in HOSTILE:
        request = GenerationRequest((5, 6), 40, guide=DecodingGuide(kind, text))
        try:
            engine.check(request)
            taken.append(request)
        except RequestError as error:
            refused.add(error.code)
    assert refused == {"invalid_parameter"}
    *answers, beside = run(engine, *taken, plain)
    assert beside.token_ids == expected.token_ids
    assert {answer.reason for answer in answers} == {FinishReason.STOP, FinishReason.LENGTH, FinishReason.ERROR}
    assert {answer.error[1] for answer in answers if answer.error} == {"invalid_parameter"}
