"""How a scheduler with a stream interval cuts an answer into events, and that the answer is the same."""

from __future__ import annotations

import time
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from inflight.runtime.engine.request_queue import SINGLE_TOKENS
from inflight.runtime.messages import FinishReason, GenerationRequest
from tests.runtime.engine.fake_scheduler import EventCollector, answered, request_of, scheduler_of
from tests.text.example_tokenizers import detokenizer_of, ids_of

KIND = "byte_level"
DEADLINE_NS = 80_000_000
TEXT = "the tea tin, the teapot"


def sizes(answer: EventCollector) -> list[int]:
    return [len(event.token_ids) for event in answer.events]


@st.composite
def requests(draw: st.DrawFn) -> GenerationRequest:
    """Answers repeat the prompt, so its parts are stop words that may be found, whole or begun."""
    ids = tuple(ids_of(KIND, TEXT))
    parts = st.tuples(st.integers(0, len(TEXT)), st.integers(1, 9)).map(lambda at: TEXT[at[0] : at[0] + at[1]])
    return GenerationRequest(
        ids,
        draw(st.integers(1, 60)),
        end_ids=draw(st.sampled_from([(), (), ids[-1:]])),
        stop_ids=draw(st.sampled_from([(), (), (ids[3:5],), (ids[6:7], (500,))])),
        stop_texts=tuple(draw(st.lists(parts.filter(bool), max_size=2))),
        log_probs=draw(st.booleans()),
    )


@given(request=requests(), interval=st.integers(2, 12))
def test_an_answer_is_the_same_with_any_interval(request: GenerationRequest, interval: int) -> None:
    found = {}
    for number in (1, interval):
        engine = scheduler_of(load_detokenizer=lambda: detokenizer_of(KIND, True), stream_interval=number)
        answer = answered(engine, request)
        end = answer.end
        log_probs = [one for event in answer.events for one in event.log_probs]
        found[number] = (answer.tokens, log_probs, end.finish_reason, end.dropped_characters, end.kv_blocks)
        assert answer.events[0].timings is not None
    assert found[1] == found[interval]


def test_the_first_tokens_come_one_by_one_and_the_end_is_not_delayed() -> None:
    engine, answer = scheduler_of(stream_interval=8), EventCollector()
    engine.submit(request_of(answer=SINGLE_TOKENS + 8 + 3), answer)
    seen = []
    while not engine.idle:
        engine.step()
        seen.append(len(answer.tokens))
    assert seen == [1, 2, 3, 4, *[4] * 7, 12, 12, 12, 15]
    assert sizes(answer) == [1, 1, 1, 1, 8, 3]


def test_a_cancelled_request_sends_the_tokens_that_wait() -> None:
    engine, answer = scheduler_of(stream_interval=50), EventCollector()
    handle = engine.submit(replace(request_of(answer=90), log_probs=True), answer)
    for _ in range(SINGLE_TOKENS + 3):
        engine.step()
    engine.cancel(handle)
    assert (sizes(answer), answer.reason) == ([*[1] * SINGLE_TOKENS, 3], FinishReason.CANCELLED)
    assert len(answer.end.log_probs) == 3


def test_a_deadline_sends_the_tokens_that_wait() -> None:
    engine = scheduler_of(kv_cache_tokens=4096, stream_interval=50, step_seconds="0.001")
    request = replace(request_of(answer=4000), deadline_ns=time.monotonic_ns() + DEADLINE_NS)
    answer = answered(engine, request)
    assert answer.reason is FinishReason.DEADLINE
    assert len(answer.tokens) == engine.stats().steps
