"""Guided answers match their guide; a bad guide is refused alone, and the engine goes on meanwhile."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from inflight.runtime.backends.openvino.model_runner import OpenVinoModelRunner
from inflight.runtime.engine.interface import EngineOptions
from inflight.runtime.engine.scheduler import Scheduler
from inflight.runtime.messages import (
    DecodingGuide,
    FinishReason,
    GenerationRequest,
    GuideType,
    RequestError,
    RequestMetadata,
    SamplingConfig,
    TokenEvent,
)
from tests.fixtures.errors import raises
from tests.runtime.backends.drive_runner import CollectedOutput, run

PROMPT = tuple(range(10, 50))
END = (1,)
SCHEMA = {
    "type": "object",
    "properties": {
        "colour": {"enum": ["red", "green"]},
        "count": {"type": "integer"},
        "whole": {"type": "boolean"},
    },
    "required": ["colour", "count", "whole"],
    "additionalProperties": False,
}
SAMPLED = [SamplingConfig(), *(SamplingConfig(temperature=1.0, top_p=1.0, seed=seed) for seed in range(4))]


@pytest.fixture(scope="module")
def engine_dir(tiny_engine: Callable[[str], Path]) -> Path:
    return tiny_engine("llama")


@pytest.fixture(scope="module")
def stepper(engine_dir: Path) -> Iterator[OpenVinoModelRunner]:
    options = EngineOptions("openvino", str(engine_dir), 256 * 32, max_num_sequences=8, max_num_tokens=64)
    stepper = OpenVinoModelRunner(options)
    yield stepper
    stepper.close()


@pytest.fixture(scope="module")
def text_of(engine_dir: Path) -> Callable[[CollectedOutput], str]:
    tokenizer = Tokenizer.from_file(str(engine_dir / "tokenizer.json"))
    return lambda answer: str(tokenizer.decode(answer.token_ids, skip_special_tokens=False))


def guided(guide_type: str, text: str = "", max_tokens: int = 200, **fields: object) -> GenerationRequest:
    return GenerationRequest(PROMPT, max_tokens, END, guide=DecodingGuide(GuideType(guide_type), text), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("guide_type", "text", "matches"),
    [
        ("regex", r"\(\d{3}\) \d{3}-\d{4}", lambda text: re.fullmatch(r"\(\d{3}\) \d{3}-\d{4}", text)),
        ("regex", "(é|日本|🍵){2,5}", lambda text: re.fullmatch("(é|日本|🍵){2,5}", text)),
        ("ebnf_grammar", 'root ::= "(" root ")" | "yes" | "no"', lambda text: text.strip("()") in ("yes", "no")),
        ("json_schema", json.dumps(SCHEMA), lambda text: json.loads(text).keys() == {"colour", "count", "whole"}),
        ("json", "", lambda text: isinstance(json.loads(text), dict | list)),
    ],
)
def test_an_answer_matches_its_guide_or_was_cut(
    stepper: OpenVinoModelRunner,
    text_of: Callable[[CollectedOutput], str],
    guide_type: str,
    text: str,
    matches: Callable[[str], object],
) -> None:
    """Also with penalties, which push the guide's few tokens down, and without an end token of the request's own."""
    requests = [guided(guide_type, text, sampling=sampling) for sampling in SAMPLED]
    requests.append(guided(guide_type, text, sampling=SamplingConfig(repetition_penalty=5.0, presence_penalty=2.0)))
    requests.append(GenerationRequest(PROMPT, 200, guide=DecodingGuide(GuideType(guide_type), text)))
    whole = 0
    for answer in run(stepper, *requests):
        assert answer.reason in (FinishReason.STOP, FinishReason.LENGTH)
        if answer.reason is FinishReason.STOP:
            assert matches(text_of(answer)), text_of(answer)
            whole += 1
    assert whole >= 3


def test_an_answer_that_max_tokens_cut_is_a_beginning(
    stepper: OpenVinoModelRunner, text_of: Callable[[CollectedOutput], str]
) -> None:
    (answer,) = run(stepper, guided("regex", "(ab){300}c", max_tokens=20))
    assert answer.reason is FinishReason.LENGTH
    assert re.fullmatch("(ab)+a?", text_of(answer))


def test_a_guide_changes_nothing_for_others(stepper: OpenVinoModelRunner) -> None:
    plain = GenerationRequest(PROMPT, 60)
    (alone,) = run(stepper, plain)
    company = run(stepper, guided("json"), plain, guided("regex", "[a-z]{30}"))
    assert company[1].token_ids == alone.token_ids


BROKEN = [
    ("json_schema", "", "JSON"),
    ("json_schema", "{'a': 1}", "JSON"),
    ("json_schema", "[1, 2]", "object"),
    ("json_schema", '"string"', "object"),
    ("json_schema", "[" * 60000, "nested"),
    ("json_schema", '{"type": "text"}', "Unsupported type"),
    ("json_schema", '{"enum": []}', "guided_decoding_guide"),
    ("json_schema", "false", "guided_decoding_guide"),
    ("json_schema", '{"$ref": "#"}', "token"),
    ("json_schema", '{"type": "integer", "minimum": 5, "maximum": 3}', "guided_decoding_guide"),
    ("json_schema", '{"type": "string", "pattern": "(("}', "guided_decoding_guide"),
    ("regex", "", "empty"),
    ("regex", "(", "parenthesis"),
    ("regex", r"(a)\1", "guided_decoding_guide"),
    ("regex", "(?=a)b", "guided_decoding_guide"),
    ("regex", "a{5,2}", "guided_decoding_guide"),
    ("regex", "a\0b", "NUL"),
    ("regex", "\ud800", "half of a character"),
    ("regex", "a" * 70000, "70000 characters"),
    ("ebnf_grammar", "", "empty"),
    ("ebnf_grammar", "root ::=", "guided_decoding_guide"),
    ("ebnf_grammar", 'start ::= "a"', "root"),
    ("ebnf_grammar", "root ::= other", "other"),
    ("ebnf_grammar", "root ::= root", "token"),
]


@pytest.mark.parametrize(("guide_type", "text", "said"), BROKEN, ids=lambda value: str(value)[:30])
def test_a_broken_guide_is_refused_in_a_sentence(
    stepper: OpenVinoModelRunner, guide_type: str, text: str, said: str
) -> None:
    with raises(RequestError, "invalid_parameter", naming=("guided_decoding_guide", said)) as refused:
        run(stepper, guided(guide_type, text))
    assert len(str(refused.value)) < 500
    assert "\n" not in str(refused.value)


HOSTILE = {
    "a stack that overflows": DecodingGuide(GuideType.REGEX, "(" * 20000 + "a" + ")" * 20000),
    "a grammar of parentheses": DecodingGuide(GuideType.EBNF_GRAMMAR, "root ::= " + "(" * 20000 + '"a"' + ")" * 20000),
    "a schema that grows by the square": DecodingGuide(
        GuideType.JSON_SCHEMA, '{"type":"array","items":' * 800 + "{}" + "}" * 800
    ),
    "a regex that multiplies out": DecodingGuide(GuideType.REGEX, "((a{100}){100}){100}"),
    "an ambiguous grammar": DecodingGuide(GuideType.EBNF_GRAMMAR, "root ::= x\nx ::= x x x | [a-z] | x x"),
    "an ambiguous regex": DecodingGuide(GuideType.REGEX, "(.*)*(.*)*(.*)*"),
}


def step_until_tried(stepper: OpenVinoModelRunner, request: GenerationRequest, steps: list[tuple[int, float]]) -> None:
    """Keep the engine at its work meanwhile; note the tokens of each step and the seconds that it took."""
    deadline = time.monotonic() + 120
    while not stepper.ready(request):
        assert time.monotonic() < deadline
        stepper.prepare([request])
        started = time.monotonic()
        tokens = sum(len(progress.token_ids) for progress in stepper.step())
        steps.append((tokens, time.monotonic() - started))
        time.sleep(0.05)  # so that 2,000 tokens take a while


QUICKLY_REFUSED = ("a stack that overflows", "an ambiguous grammar")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICKLY_REFUSED else pytest.mark.slow) for name in HOSTILE]
)
def test_a_hostile_guide_is_refused_and_others_go_on(stepper: OpenVinoModelRunner, name: str) -> None:
    """Between asking and refusing, a running answer gets its tokens, and none of the steps between takes long."""
    request = GenerationRequest(PROMPT, 20, END, guide=HOSTILE[name])
    stepper.check(request)
    stepper.add(1000, GenerationRequest(PROMPT, 2000))
    steps: list[tuple[int, float]] = []
    with raises(RequestError, "invalid_parameter", naming="guided_decoding_guide"):
        step_until_tried(stepper, request, steps)
    stepper.remove(1000)
    assert not [*stepper.step()]
    assert max(seconds for _, seconds in steps) < 5
    assert sum(tokens for tokens, _ in steps) > 0
    (again,) = run(stepper, guided("regex", "yes|no"))
    assert again.reason is FinishReason.STOP


def test_a_verdict_is_kept(stepper: OpenVinoModelRunner) -> None:
    request = guided("ebnf_grammar", 'root ::= "a" | "b" root')
    run(stepper, request)
    assert stepper.ready(request)
    with raises(RequestError, "invalid_parameter", naming=("guided_decoding_guide", "parenthesis")):
        run(stepper, guided("regex", "((("))
    with raises(RequestError, "invalid_parameter", naming=("guided_decoding_guide", "parenthesis")):
        stepper.check(guided("regex", "((("))


def test_a_trial_that_nobody_waits_for_holds_up_nobody(stepper: OpenVinoModelRunner) -> None:
    """As when its request was cancelled: it ends by itself, and the next one is tried."""
    stepper.prepare([guided("regex", "abandoned")])
    (answer,) = run(stepper, guided("regex", "taken up"))
    assert answer.reason is FinishReason.STOP


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        (guided("json", sampling=SamplingConfig(min_tokens=5)), "min_tokens is 5"),
        (guided("json", sampling=SamplingConfig(beam_width=2)), "guided_decoding_guide"),
    ],
)
def test_what_goes_with_no_guide_is_refused_by_name(
    stepper: OpenVinoModelRunner, request_: GenerationRequest, named: str
) -> None:
    with raises(RequestError, "invalid_parameter", naming=named):
        run(stepper, request_)


def test_the_guides_of_tenants_are_tried_in_turn(stepper: OpenVinoModelRunner) -> None:
    """Of those that have many, each next one waits until every other tenant had one tried."""

    def asked(tenant: str, text: str) -> GenerationRequest:
        return guided("regex", text, metadata=RequestMetadata(tenant))

    many = [asked("many", f"many{number}") for number in range(6)]
    few = [asked("few", f"few{number}") for number in range(2)]
    waiting, tried = [*many, *few, asked("one", "one")], list[GenerationRequest]()
    deadline = time.monotonic() + 120
    while waiting:
        assert time.monotonic() < deadline
        stepper.prepare(waiting)
        tried += [request for request in waiting if stepper.ready(request)]
        waiting = [request for request in waiting if not stepper.ready(request)]
    assert [request.metadata.tenant for request in tried if request.metadata] == [
        *("many", "few", "one"),
        *("many", "few"),
        *("many",) * 4,
    ]


def test_a_known_guide_waits_for_no_trial_of_others(stepper: OpenVinoModelRunner) -> None:
    engine, ended, known = Scheduler(stepper), list[TokenEvent](), guided("regex", "yes|no")
    run(stepper, known)
    for letter in "abcdefgh":
        engine.submit(guided("regex", f"(({letter}{{100}}){{100}}){{99}}"), lambda event: None)
    engine.submit(known, ended.append)
    for _ in range(known.max_tokens):
        engine.step()
    assert ended[-1].finish_reason is FinishReason.STOP
    engine.close()
