"""Any mix of requests through Scheduler: each ends once, with its own tokens, and nothing is left."""

from __future__ import annotations

import time

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inflight.common.request_error import RequestError
from inflight.runtime.engine.fake import expected_beams
from inflight.runtime.messages import DecodingGuide, FinishReason, GenerationRequest, GuideType, SamplingConfig
from tests.runtime.engine.fake_scheduler import EventCollector, expected_answer, run_dry, scheduler_of

SEQUENCES, WAITING = 3, 6
MILLISECOND_NS = 1_000_000


def expected_end(request: GenerationRequest) -> tuple[list[int], FinishReason]:
    """The answer, cut at the first stop word."""
    tokens, reason = expected_answer(request), FinishReason.LENGTH
    for start in range(len(tokens)):
        if any(tuple(tokens[start : start + len(word)]) == word for word in request.stop_ids):
            return tokens[:start], FinishReason.STOP_WORD
    return tokens, reason


@st.composite
def requests(draw: st.DrawFn) -> GenerationRequest:
    """Prompts are runs of ids, and answers go on with them, so that words of such runs hit and miss."""
    prompt, first = draw(st.integers(1, 90)), draw(st.integers(10, 300))
    answer = draw(st.integers(1, 70))
    runs = st.integers(0, 20).flatmap(
        lambda start: st.integers(1, 4).map(lambda length: tuple(range(first + start, first + start + length)))
    )
    beams = draw(st.sampled_from([1, 1, 1, 1, 2]))
    in_ms = draw(st.sampled_from([None, None, None, -5, 0, 1, 60_000]))
    return GenerationRequest(
        tuple(range(first, first + prompt)),
        answer,
        sampling=SamplingConfig(beam_width=beams),
        stop_ids=tuple(draw(st.lists(runs, max_size=2))) if beams == 1 else (),
        guide=draw(
            st.sampled_from(
                [None, None, None, DecodingGuide(GuideType.REGEX, "a"), DecodingGuide(GuideType.REGEX, "b")]
            )
        ),
        adapter=draw(st.sampled_from([0, 0, 0, 1])),
        priority=draw(st.sampled_from([0, 0, 1])),
        deadline_ns=None if in_ms is None else time.monotonic_ns() + in_ms * MILLISECOND_NS,
    )


class RandomTraffic(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.engine = scheduler_of(8 * 32, SEQUENCES, WAITING, prefill_tokens_per_step="50")
        self.requests: dict[int, GenerationRequest] = {}
        self.answers: dict[int, EventCollector] = {}
        self.cancelled: set[int] = set()
        self.refused: list[tuple[str, int]] = []

    @rule(request=requests())
    def submit(self, request: GenerationRequest) -> None:
        answer, waiting = EventCollector(), self.engine.stats().waiting
        try:
            handle = self.engine.submit(request, answer)
        except RequestError as error:
            self.refused.append((error.code, waiting))
            return
        self.requests[handle] = request
        self.answers[handle] = answer

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        handle = data.draw(st.sampled_from(sorted(self.requests)))
        self.engine.cancel(handle)
        self.cancelled.add(handle)
        assert self.answers[handle].ended

    @rule(turns=st.integers(1, 40))
    def turn(self, turns: int) -> None:
        for _ in range(turns):
            self.engine.step()

    @invariant()
    def budget_holds(self) -> None:
        stats = self.engine.stats()
        assert 0 <= stats.kv_blocks_reserved <= stats.kv_blocks
        assert 0 <= stats.prefilling <= stats.running <= SEQUENCES
        assert stats.waiting <= WAITING + SEQUENCES
        assert stats.running + stats.waiting == sum(not answer.ended for answer in self.answers.values())

    @invariant()
    def refusals_have_a_reason(self) -> None:
        assert all(code == "prompt_too_long" or waiting >= WAITING for code, waiting in self.refused)

    @invariant()
    def order_holds(self) -> None:
        """Of those that nothing distinguishes, each begins after the ones before it."""
        plain = [handle for handle, request in sorted(self.requests.items()) if self._is_plain(handle, request)]
        for priority in (0, 1):
            started = [bool(self.answers[handle].events) for handle in plain if self._priority(handle) == priority]
            assert started == sorted(started, reverse=True)

    def _is_plain(self, handle: int, request: GenerationRequest) -> bool:
        special = request.stop_ids or request.guide or request.deadline_ns or request.sampling.beam_width > 1
        # Longer prompts take several steps to their first token.
        return not special and handle not in self.cancelled and len(request.prompt_ids) <= 50

    def _priority(self, handle: int) -> int:
        return self.requests[handle].priority

    def teardown(self) -> None:
        run_dry(self.engine)
        for handle, request in self.requests.items():
            self._check(handle, request, self.answers[handle])
        stats = self.engine.stats()
        assert (stats.running, stats.waiting, stats.kv_blocks_reserved, stats.prefilling) == (0, 0, 0, 0)

    def _check(self, handle: int, request: GenerationRequest, answer: EventCollector) -> None:
        tokens, reason = expected_end(request)
        told = [number for number, event in enumerate(answer.events) if event.timings is not None]
        assert told == sorted({0, len(answer.events) - 1})
        if answer.reason in (FinishReason.CANCELLED, FinishReason.DEADLINE):
            assert handle in self.cancelled or request.deadline_ns is not None
            # What may have become a stop word is sent, since it did not.
            assert answer.tokens == expected_answer(request)[: len(answer.tokens)]
            assert not any(word == tuple(answer.tokens[-len(word) :]) for word in request.stop_ids)
        elif request.sampling.beam_width > 1:
            assert answer.end.beams == expected_beams(request)
        else:
            assert (answer.tokens, answer.reason) == (tokens, reason)


RandomTraffic.TestCase.settings = settings(max_examples=settings().max_examples, stateful_step_count=25, deadline=None)
TestRandomTraffic = RandomTraffic.TestCase
