"""The LLM API's adapter on the stand-in: what its answers, ends and failures become, in a separate process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from inflight.common.request_error import RequestError
from inflight.runtime.engine.supervisor import EngineProcess
from inflight.runtime.messages import (
    DecodingGuide,
    FinishReason,
    GenerationRequest,
    GuideType,
    SamplingConfig,
)
from tests.fixtures.errors import raises
from tests.fixtures.waiting import wait_until
from tests.runtime.backends.llmapi.standin import (
    END_IDS,
    ENDLESS,
    FAILING,
    GARBLED,
    PROMPT,
    REFUSED,
    STANDIN_OPTIONS,
    Engines,
    answered,
    engine_dir,
    options_of,
)
from tests.runtime.engine.fake_engine_process import EventWaiter


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, standin_llmapi: None) -> Iterator[EngineProcess]:
    """Shared, so no test may harm it: two requests in the library at a time."""
    directory = engine_dir(tmp_path_factory.mktemp("engines") / "llmapi", STANDIN_OPTIONS, max_batch_size=2)
    engine = EngineProcess(options_of(directory))
    yield engine
    engine.close()


def test_tokens_come_as_they_are_made_each_with_its_log_probability(engine: EngineProcess) -> None:
    answer = answered(engine, GenerationRequest(PROMPT, 70, END_IDS, log_probs=True))
    assert answer.tokens == [100, 101, 102] * 23 + [100]
    assert [log_prob for event in answer.events for log_prob in event.log_probs] == [-0.5] * 70
    assert len(answer.events) > 3
    assert answer.end().finish_reason is FinishReason.LENGTH
    timings = answer.end().timings
    assert timings is not None
    assert timings.arrival_ns <= timings.admitted_ns < timings.first_token_ns < timings.end_ns


@pytest.mark.parametrize("end", END_IDS)
def test_any_end_token_ends_an_answer_and_is_none_of_it(engine: EngineProcess, end: int) -> None:
    answer = answered(engine, GenerationRequest((100, 101, end), 7, END_IDS, log_probs=True))
    assert answer.tokens == [100, 101]
    assert sum(len(event.log_probs) for event in answer.events) == 2
    assert answer.end().finish_reason is FinishReason.STOP


def test_without_end_tokens_it_takes_its_full_length(engine: EngineProcess) -> None:
    answer = answered(engine, GenerationRequest((100, END_IDS[0]), 4))
    assert (answer.tokens, answer.end().finish_reason) == ([100, END_IDS[0]] * 2, FinishReason.LENGTH)


def test_a_stop_word_of_several_tokens_is_found_and_cut(engine: EngineProcess) -> None:
    answer = answered(engine, GenerationRequest(PROMPT, ENDLESS, END_IDS, stop_ids=((102, 100),)))
    assert (answer.tokens, answer.end().finish_reason) == ([100, 101], FinishReason.STOP_WORD)


def test_words_to_keep_out_and_biases_reach_the_library(engine: EngineProcess) -> None:
    banned = answered(engine, GenerationRequest(PROMPT, 4, END_IDS, bad_ids=((101,), (102, 100))))
    assert banned.tokens == [100, 102, 102, 101 + 1]
    biased = answered(engine, GenerationRequest(PROMPT, 3, END_IDS, logit_bias=((7, 0.5), (9, 2.0))))
    assert biased.tokens == [9, 9, 9]


def test_a_guide_reaches_the_library_and_ends_the_answer(engine: EngineProcess) -> None:
    for guide, told in (
        (DecodingGuide(GuideType.JSON_SCHEMA, '{"type": "object"}'), b'{"type": "object"}'),
        (DecodingGuide(GuideType.EBNF_GRAMMAR, 'root ::= "a"'), b'root ::= "a"'),
        (DecodingGuide(GuideType.JSON), b"json_object"),
    ):
        answer = answered(engine, GenerationRequest(PROMPT, 100, guide=guide))
        assert bytes(answer.tokens) == told
        assert answer.end().finish_reason is FinishReason.STOP


def test_a_cancelled_answer_makes_room_for_the_next(engine: EngineProcess) -> None:
    long = [EventWaiter(), EventWaiter()]
    handles = [engine.submit(GenerationRequest(PROMPT, ENDLESS, END_IDS), answer) for answer in long]
    wait_until(lambda: all(answer.events for answer in long))
    waiting = EventWaiter()
    engine.submit(GenerationRequest(PROMPT, 3, END_IDS), waiting)
    assert engine.stats().waiting == 1
    engine.cancel(handles[0])
    assert long[0].end().finish_reason is FinishReason.CANCELLED
    assert waiting.end().finish_reason is FinishReason.LENGTH
    engine.cancel(handles[1])
    assert long[1].end().finish_reason is FinishReason.CANCELLED
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.kv_blocks_reserved) == (0, 0, 0)


def test_many_stop_words_at_once_end_their_own_answers_alone(llmapi_engines: Engines) -> None:
    """The library is steps ahead when its answers are looked at, also of those that have just ended here."""
    engine = llmapi_engines({"step_seconds": 0.0}, max_batch_size=64)
    answers = [EventWaiter() for _ in range(64)]
    for number, answer in enumerate(answers):
        request = GenerationRequest((100 + number, 200, 300), 400, END_IDS, stop_ids=((300, 100 + number),))
        engine.submit(request, answer)
    for number, answer in enumerate(answers):
        assert (answer.end().finish_reason, answer.end().error) == (FinishReason.STOP_WORD, None)
        assert answer.tokens == [100 + number, 200]


def test_what_the_library_refuses_or_fails_ends_alone(engine: EngineProcess) -> None:
    other = EventWaiter()
    handle = engine.submit(GenerationRequest(PROMPT, ENDLESS, END_IDS), other)
    refused = answered(engine, GenerationRequest((REFUSED,), 5, END_IDS))
    failed = answered(engine, GenerationRequest((FAILING, 100), 5, END_IDS))
    assert refused.end().error == (
        "the engine refused the request: the stand-in refused because it was asked to",
        "invalid_request",
    )
    assert failed.tokens == [FAILING, 100]
    assert failed.end().error == (
        "the engine refused the request: the stand-in failed because it was asked to",
        "invalid_request",
    )
    garbled = answered(engine, GenerationRequest((GARBLED, 100), 5, END_IDS)).end().error
    assert garbled == ("the engine refused the request: Unknown finish reason: garbled", "invalid_request")
    before = len(other.events)
    wait_until(lambda: len(other.events) > before)
    engine.cancel(handle)


def test_what_can_not_be_asked_for_is_refused_at_once(engine: EngineProcess) -> None:
    answer = answered(engine, GenerationRequest(PROMPT, 5, sampling=SamplingConfig(beam_width=2)))
    error = answer.end().error
    assert error is not None
    assert error[0].startswith("beam_width is 2, and the engine was built for 1")
    with raises(RequestError, "invalid_token_ids", naming="token id 512"):
        engine.submit(GenerationRequest((512,), 5), EventWaiter())


def test_beams_come_together_the_best_first(llmapi_engines: Engines) -> None:
    engine = llmapi_engines(max_beam_width=2)
    sampling = SamplingConfig(beam_width=2)
    answer = answered(engine, GenerationRequest((100, 101, END_IDS[0]), 9, END_IDS, sampling, log_probs=True))
    best, second = answer.end().beams
    assert (best.token_ids, best.log_probs, best.cumulative_log_prob) == ((100, 101), (-0.5, -0.5), -1.5)
    assert second.token_ids == (101,)
    assert answer.end().finish_reason is FinishReason.STOP
