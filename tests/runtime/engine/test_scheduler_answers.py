"""What Scheduler makes of a stepper's tokens: stop words, drafts, log probabilities, beams, and what it tells."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest

from inflight.runtime.engine.fake import LOG_PROB, FakeModelRunner, expected_beams
from inflight.runtime.engine.interface import EngineOptions, SelfSchedulingRunner, StepOutput
from inflight.runtime.engine.scheduler import Scheduler
from inflight.runtime.messages import FinishReason, GenerationRequest, RequestMetadata, SamplingConfig
from inflight.text.detokenizer import CONTEXT_TOKENS, Chunk, Detokenizer
from tests.runtime.engine.fake_scheduler import EventCollector, answered, request_of, run_dry, scheduler_of
from tests.text.example_tokenizers import detokenizer_of, ids_of

KIND = "byte_level"


def prompt_of(text: str) -> tuple[int, ...]:
    return tuple(ids_of(KIND, text))


def detokenizer() -> Detokenizer:
    return detokenizer_of(KIND, True)


def text_of(answer: EventCollector) -> str:
    context, text = list[int](), ""
    for event in answer.events:
        chunk = Chunk(event.token_ids, context, final=event.finish_reason is not None)
        (piece,) = detokenizer().texts([chunk])
        text += piece[: len(piece) - event.dropped_characters]
        context = [*context, *event.token_ids][-CONTEXT_TOKENS:]
    return text


@pytest.mark.parametrize("answer", [1, 3])
def test_the_first_and_the_last_event_tell_where_their_request_comes_from(answer: int) -> None:
    origin = RequestMetadata("team", "00-a-b-01", "0.1.0")
    events = answered(scheduler_of(), replace(request_of(answer=answer), metadata=origin)).events
    assert [event.metadata for event in events] == [origin if event.timings else None for event in events]
    assert events[0].metadata == events[-1].metadata == origin


def test_a_stop_word_ends_the_answer_at_once_and_is_not_part_of_it() -> None:
    engine = scheduler_of()
    answer = answered(engine, replace(request_of(prompt=10, answer=50), stop_ids=((104, 105), (999,))))
    assert (answer.tokens, answer.reason) == ([100, 101, 102, 103], FinishReason.STOP_WORD)
    assert engine.stats().steps == 6
    assert engine.stats().kv_blocks_reserved == 0


def test_a_stop_word_as_text_may_straddle_tokens_and_begin_within_one() -> None:
    """The answer repeats the prompt, so that what straddles is never in the prompt itself."""
    engine = scheduler_of(load_detokenizer=detokenizer)
    answer = answered(engine, GenerationRequest(prompt_of("the tea tin"), 50, stop_texts=("inthe",)))
    assert (text_of(answer), answer.reason) == ("the tea t", FinishReason.STOP_WORD)
    assert engine.idle


def test_the_tokenizer_is_loaded_once_and_only_for_texts() -> None:
    loads = list[int]()

    def load() -> Detokenizer:
        loads.append(1)
        return detokenizer()

    engine = scheduler_of(load_detokenizer=load)
    answered(engine, replace(request_of(), stop_ids=((999,),), stop_texts=("",)))
    assert loads == []
    for _ in range(3):
        answered(engine, GenerationRequest(prompt_of("the tea"), 9, stop_texts=("x",)))
    assert loads == [1]


def test_without_a_tokenizer_stop_words_as_text_are_refused() -> None:
    engine, answer = scheduler_of(), EventCollector()
    engine.submit(replace(request_of(), stop_texts=("x",)), answer)
    run_dry(engine)
    assert answer.end.error == (
        "this engine has no tokenizer; send stop words as token ids",
        "invalid_parameter",
    )


@pytest.mark.parametrize("word", [(103, 104, 105, 1), (104, 999)])
def test_what_was_held_back_comes_when_the_answer_ends_otherwise(word: tuple[int, ...]) -> None:
    answer = answered(scheduler_of(), replace(request_of(prompt=10, answer=5), stop_ids=(word,), log_probs=True))
    assert (answer.tokens, answer.reason) == ([100, 101, 102, 103, 104], FinishReason.LENGTH)
    assert [len(event.token_ids) for event in answer.events] == [1] * (len(answer.events) - 1) + [
        6 - len(answer.events)
    ]
    assert all(len(event.log_probs) == len(event.token_ids) for event in answer.events)


def test_what_was_held_back_comes_when_the_request_is_cancelled() -> None:
    engine, answer = scheduler_of(), EventCollector()
    handle = engine.submit(replace(request_of(answer=9), stop_ids=((100, 101, 102, 1),)), answer)
    engine.step()
    engine.step()
    assert answer.events == []
    engine.cancel(handle)
    assert (answer.tokens, answer.reason) == ([100, 101], FinishReason.CANCELLED)


def test_a_stop_word_that_a_longer_one_was_waited_for_ends_a_cancelled_answer() -> None:
    engine, answer = scheduler_of(), EventCollector()
    handle = engine.submit(replace(request_of(answer=9), stop_ids=((100, 101, 102, 1), (101, 102))), answer)
    for _ in range(3):
        engine.step()
    assert answer.events == []
    engine.cancel(handle)
    assert (answer.tokens, answer.reason) == ([100], FinishReason.STOP_WORD)


def test_the_end_token_comes_before_a_stop_word_that_it_ends_in_the_middle() -> None:
    request = replace(request_of(answer=9), stop_ids=((102, 103, 104),), end_ids=(104,))
    answer = answered(scheduler_of(), request)
    assert (answer.tokens, answer.reason) == ([100, 101, 102, 103], FinishReason.STOP)


def test_a_stop_word_is_not_looked_for_before_min_tokens() -> None:
    request = replace(request_of(prompt=4, answer=20), stop_ids=((102,),), sampling=SamplingConfig(min_tokens=3))
    answer = answered(scheduler_of(), request)
    assert (answer.tokens, answer.reason) == ([100, 101, 102, 103, 100, 101], FinishReason.STOP_WORD)


def test_log_probs_come_with_their_tokens() -> None:
    answer = answered(scheduler_of(), replace(request_of(answer=3), log_probs=True))
    assert [event.log_probs for event in answer.events] == [(LOG_PROB,)] * 3
    assert not any(event.log_probs for event in answered(scheduler_of(), request_of(answer=3)).events)


def test_a_beam_search_says_nothing_until_it_ends() -> None:
    request = replace(request_of(prompt=9, answer=4), sampling=SamplingConfig(beam_width=3), log_probs=True)
    answer = answered(scheduler_of(), request)
    (event,) = answer.events
    assert (event.token_ids, event.beams) == ((), expected_beams(request))
    assert event.finish_reason is FinishReason.LENGTH
    assert event.timings is not None
    assert event.timings.admitted_ns <= event.timings.first_token_ns < event.timings.end_ns


def test_stop_words_cut_each_beam_and_the_reason_is_that_of_the_best() -> None:
    request = replace(request_of(prompt=9, answer=4), sampling=SamplingConfig(beam_width=3))
    of_best = answered(scheduler_of(), replace(request, stop_ids=((101, 102),)))
    assert [beam.token_ids for beam in of_best.end.beams] == [(100,), (), (102, 103, 104, 105)]
    assert of_best.reason is FinishReason.STOP_WORD
    of_last = answered(scheduler_of(), replace(request, stop_ids=((105,),)))
    assert [len(beam.token_ids) for beam in of_last.end.beams] == [4, 4, 3]
    assert of_last.reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("prompt", "request_", "blocks"),
    [
        (32, {"max_tokens": 1}, 1),
        (32, {"max_tokens": 2}, 2),
        (33, {"max_tokens": 32}, 2),
        (33, {"max_tokens": 33}, 3),
        (30, {"max_tokens": 50, "end_ids": (103,)}, 2),
        (30, {"max_tokens": 50, "stop_ids": ((102, 103),)}, 2),
    ],
)
def test_the_last_event_tells_the_blocks_that_were_filled(prompt: int, request_: dict[str, int], blocks: int) -> None:
    answer = answered(scheduler_of(), replace(request_of(prompt), **request_))  # type: ignore[arg-type]
    assert answer.end.kv_blocks == blocks
    assert all(event.kv_blocks == 0 for event in answer.events[:-1])


def test_beams_share_the_whole_blocks_of_their_prompt() -> None:
    request = replace(request_of(prompt=70, answer=30), sampling=SamplingConfig(beam_width=2))
    assert answered(scheduler_of(kv_cache_tokens=1000), request).end.kv_blocks == 2 + 2 * 2


def test_a_request_that_never_ran_filled_no_block() -> None:
    engine, answer = scheduler_of(), EventCollector()
    handle = engine.submit(request_of(), answer)
    engine.cancel(handle)
    assert answer.end.kv_blocks == 0


def test_stats_tell_what_prefills() -> None:
    engine = scheduler_of(kv_cache_tokens=1000, prefill_tokens_per_step="16")
    engine.submit(request_of(prompt=10, answer=9), EventCollector())
    engine.submit(request_of(prompt=40, answer=9), EventCollector())
    seen = []
    for _ in range(4):
        engine.step()
        stats = engine.stats()
        seen.append((stats.running, stats.prefilling, stats.prefilling_tokens))
    assert seen == [(2, 1, 40), (2, 1, 40), (2, 0, 0), (2, 0, 0)]


def test_a_beam_search_which_shows_no_first_token_counts_as_generating() -> None:
    engine = scheduler_of(kv_cache_tokens=1000)
    engine.submit(replace(request_of(prompt=10, answer=9), sampling=SamplingConfig(beam_width=2)), EventCollector())
    engine.step()
    stats = engine.stats()
    assert (stats.running, stats.prefilling, stats.prefilling_tokens) == (1, 0, 0)


AHEAD = 4
"""Steps that are reported in one poll."""


class AheadRunner(FakeModelRunner):
    """Reports AHEAD steps at once, each by a separate progress."""

    def __init__(self) -> None:
        super().__init__(EngineOptions("fake", "", kv_cache_tokens=4096))
        self.arrivals = socket.socket()

    def step(self) -> Iterator[StepOutput]:
        told = [progress for _ in range(AHEAD) for progress in super(AheadRunner, self).step()]
        yield from told

    def remove(self, handle: int) -> None:
        self._running.pop(handle, None)  # the library may have ended it already

    def close(self) -> None:
        self.arrivals.close()


@pytest.fixture
def stepper() -> Iterator[AheadRunner]:
    stepper = AheadRunner()
    yield stepper
    stepper.close()


@pytest.mark.parametrize("max_tokens", [3, 50])
def test_what_is_told_behind_a_stop_word_is_none_of_the_answer(stepper: AheadRunner, max_tokens: int) -> None:
    assert isinstance(stepper, SelfSchedulingRunner)
    engine = Scheduler(stepper)
    stopped, other = EventCollector(), EventCollector()
    engine.submit(GenerationRequest((100, 101, 102), max_tokens, stop_ids=((100, 101),)), stopped)
    engine.submit(GenerationRequest((200, 201, 202), 6), other)
    run_dry(engine)
    assert (stopped.tokens, stopped.reason) == ([], FinishReason.STOP_WORD)
    assert (other.tokens, other.reason) == ([200, 201, 202] * 2, FinishReason.LENGTH)
    assert engine.stats().kv_blocks_reserved == 0
