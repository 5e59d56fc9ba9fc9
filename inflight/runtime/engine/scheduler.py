"""The scheduler: turns a step-driven library into an engine with in-flight batching."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count

from inflight.common.request_error import RequestError
from inflight.runtime.engine.interface import ModelRunner, SelfSchedulingRunner, StepOutput
from inflight.runtime.engine.queue_full import queue_full_error
from inflight.runtime.engine.request_queue import RequestQueue, ScheduledRequest, error_from_exception
from inflight.runtime.messages import (
    Beam,
    EngineLimits,
    EngineStats,
    EventSink,
    FinishReason,
    GenerationRequest,
    TokenEvent,
)
from inflight.text.detokenizer import PROMPT_CONTEXT_TOKENS, Detokenizer
from inflight.text.stop_words import NOTHING_RELEASED, Released, StopWords

RECENT_NS = 1_000_000_000
"""After this long without a step, the engine may be faster than before: requests with tight deadlines are tried again.
"""


class StepTimes:
    """Records the latest 64 steps, in nanoseconds of the machine's monotonic clock."""

    def __init__(self) -> None:
        self._steps: deque[tuple[int, int]] = deque(maxlen=64)

    def add(self, started_ns: int, ended_ns: int) -> None:
        self._steps.append((ended_ns, ended_ns - started_ns))

    def shortest(self, now_ns: int) -> int:
        """Return the shortest step that ended within the last second; 0 if there was no step."""
        return min((took for ended, took in self._steps if now_ns - ended < RECENT_NS), default=0)


def no_tokenizer() -> Detokenizer:
    raise RequestError("this engine has no tokenizer; send stop words as token ids", "invalid_parameter")


class Scheduler:
    """Admits, steps and ends requests of a `ModelRunner`; its owner calls `step` while there is work.

    A request is admitted, by priority and then in order of arrival, once the KV blocks of its worst case are free, so
    the cache never overflows under a running request (TensorRT-LLM's `guaranteed_no_evict`). No request overtakes the
    head of the queue, not even a smaller one.

    A request whose deadline passes ends between two steps; a waiting one ends as soon as one step of the shortest
    recent length would end too late. `max_queue_size` limits the waiting requests beyond those that the next turn can
    admit (0: no limit). `load_detokenizer` is called once, with the first request that has text stop words. After an
    answer's first tokens, an event has the tokens of `stream_interval` steps: each event costs all processes after this
    one processor time. Not thread-safe: one thread makes all calls.
    """

    def __init__(
        self,
        runner: ModelRunner,
        max_queue_size: int = 0,
        load_detokenizer: Callable[[], Detokenizer] = no_tokenizer,
        stream_interval: int = 1,
    ) -> None:
        self.limits: EngineLimits = runner.limits
        self._runner = runner
        self._self_scheduling = isinstance(runner, SelfSchedulingRunner)
        self._max_queue_size = max_queue_size
        self._load_detokenizer = cache(load_detokenizer)
        self._stream_interval = stream_interval
        self._handles = count(1)
        self._queue = RequestQueue()
        self._running: dict[int, ScheduledRequest] = {}
        self._running_deadlines: dict[int, int] = {}
        self._sequences = 0
        self._kv_blocks_reserved = 0
        self._step_times = StepTimes()
        self._steps = 0
        self._generated = 0

    @property
    def idle(self) -> bool:
        return not self._queue and not self._running

    def submit(self, request: GenerationRequest, on_event: EventSink, handle: int | None = None) -> int:
        """Queue a request; the caller may choose the `handle`.

        Raises RequestError for a request that can never run, and (`overloaded`) if too many wait.
        """
        self.limits.check(request)
        self._runner.check(request)
        handle = next(self._handles) if handle is None else handle
        blocks = self.limits.kv_blocks_for(request)
        self._queue.push(ScheduledRequest(handle, request, on_event, blocks, arrival_ns=time.monotonic_ns()))
        if self._max_queue_size and self._queue_is_full():
            self._queue.remove(handle)
            raise queue_full_error(self._max_queue_size)
        return handle

    def cancel(self, handle: int) -> None:
        entry = self._running.get(handle)
        if entry is not None:
            self._end_running(entry, FinishReason.CANCELLED)
            return
        entry = self._queue.remove(handle)
        if entry is not None:
            self._emit_last(entry, FinishReason.CANCELLED)

    def step(self) -> None:
        """Drop expired requests, admit those that fit, run one step, and emit all events of the step."""
        self._drop_expired()
        self._admit()
        if not self._running and not self._self_scheduling:
            return
        started_ns = time.monotonic_ns()
        # Complete the step first: an answer that ends here is removed from the model runner, which must not be in a
        # step then.
        steps = list(self._runner.step())
        if steps or not self._self_scheduling:
            self._step_times.add(started_ns, time.monotonic_ns())
            self._steps += 1
        for progress in sorted(steps, key=self._is_later):  # first tokens first, since someone waits for each
            self._process_output(progress)

    def stats(self) -> EngineStats:
        prefilling = [entry for entry in self._running.values() if entry.prefilling]
        return EngineStats(
            waiting=len(self._queue),
            running=len(self._running),
            kv_blocks_reserved=self._kv_blocks_reserved,
            kv_blocks=self.limits.kv_blocks,
            steps=self._steps,
            prefilling=len(prefilling),
            prefilling_tokens=sum(len(entry.request.prompt_ids) for entry in prefilling),
            prefilled=self._runner.prefilled,
            generated=self._generated,
        )

    def close(self) -> None:
        for handle in [*self._running, *(entry.handle for entry in self._queue)]:
            self.cancel(handle)

    def _queue_is_full(self) -> bool:
        if len(self._queue) <= self._max_queue_size:
            return False
        self._drop_expired()
        return len(self._queue) - sum(1 for _ in self._admissible()) > self._max_queue_size

    def _drop_expired(self) -> None:
        now = time.monotonic_ns()
        if self._running_deadlines:
            for handle in [handle for handle, deadline in self._running_deadlines.items() if deadline <= now]:
                self._end_running(self._running[handle], FinishReason.DEADLINE)
        if self._queue.has_deadlines:
            for entry in self._queue.pop_expired(now + self._step_times.shortest(now)):
                self._emit_last(entry, FinishReason.DEADLINE)

    def _admissible(self) -> Iterator[ScheduledRequest]:
        """Yield the requests at the head of the queue that can be admitted together."""
        sequences, blocks = self._sequences, self._kv_blocks_reserved
        for entry in self._queue:
            sequences += entry.request.sampling.beam_width
            blocks += entry.kv_blocks
            if sequences > self.limits.max_num_sequences or blocks > self.limits.kv_blocks:
                return
            yield entry

    def _admit(self) -> None:
        for entry in list(self._admissible()):
            self._queue.remove(entry.handle)
            try:
                self._start(entry)
            except Exception as error:  # a request that the library refuses ends; others continue
                self._emit_last(entry, FinishReason.ERROR, error=error_from_exception(error))

    def _start(self, entry: ScheduledRequest) -> None:
        request = entry.request
        if any(request.stop_ids) or any(request.stop_texts):
            entry.stop_words = self._stop_words(request)
        self._runner.add(entry.handle, request)
        entry.admitted_ns = time.monotonic_ns()
        self._running[entry.handle] = entry
        if request.deadline_ns is not None:
            self._running_deadlines[entry.handle] = request.deadline_ns
        self._sequences += request.sampling.beam_width
        self._kv_blocks_reserved += entry.kv_blocks

    def _is_later(self, output: StepOutput) -> bool:
        """Return whether a request has had tokens before those of this step."""
        entry = self._running.get(output.handle)
        return entry is None or entry.first_token_ns > 0

    def _process_output(self, output: StepOutput) -> None:
        """Emit a step's output for one request, cut at a stop word."""
        handle, token_ids, reason, log_probs, beams, speculation, error, prompt_log_probs, cached = output
        entry = self._running.get(handle)
        if entry is None:
            return  # one output may merge several steps, and an earlier one ended the answer
        if not entry.first_token_ns:
            entry.first_token_ns = time.monotonic_ns()
        entry.generated_tokens += len(token_ids)
        self._generated += len(token_ids) + sum(len(beam.token_ids) for beam in beams)
        if speculation is not None:
            entry.speculation = speculation
        entry.prompt_log_probs = entry.prompt_log_probs or prompt_log_probs
        entry.cached_tokens = cached
        dropped_characters = 0
        if entry.stop_words is not None:
            if beams:
                found_beams = tuple(cut_beam(beam, self._stop_words(entry.request)) for beam in beams)
                reason = reason if found_beams[0] is beams[0] else FinishReason.STOP_WORD
                beams = found_beams
            ended = reason is not None
            token_ids, log_probs, stopped, dropped_characters = entry.stop_words.feed(token_ids, log_probs, ended)
            if stopped:
                reason, error = FinishReason.STOP_WORD, None
        if reason is None:
            if token_ids and (event := entry.next_event(token_ids, log_probs, self._stream_interval)):
                entry.on_event(event)
            return
        if output.finish_reason is None:
            self._runner.remove(handle)
        self._release(entry)
        rest = Released(token_ids, log_probs, dropped_characters=dropped_characters)
        self._emit_last(entry, reason, rest, beams, error)

    def _stop_words(self, request: GenerationRequest) -> StopWords:
        minimum, context = request.sampling.min_tokens, request.prompt_ids[-PROMPT_CONTEXT_TOKENS:]
        return StopWords(request.stop_ids, request.stop_texts, minimum, self._load_detokenizer, context)

    def _end_running(self, entry: ScheduledRequest, reason: FinishReason) -> None:
        """End a running request between two steps, with the tokens that were held back."""
        rest = NOTHING_RELEASED if entry.stop_words is None else entry.stop_words.feed((), ended=True)
        self._runner.remove(entry.handle)
        self._release(entry)
        self._emit_last(entry, FinishReason.STOP_WORD if rest.found else reason, rest)

    def _release(self, entry: ScheduledRequest) -> None:
        """Remove a request from the running ones."""
        del self._running[entry.handle]
        self._running_deadlines.pop(entry.handle, None)
        self._sequences -= entry.request.sampling.beam_width
        self._kv_blocks_reserved -= entry.kv_blocks

    def _emit_last(
        self,
        entry: ScheduledRequest,
        reason: FinishReason,
        rest: Released = NOTHING_RELEASED,
        beams: tuple[Beam, ...] = (),
        error: tuple[str, str] | None = None,
    ) -> None:
        token_ids, log_probs = entry.with_held(rest.token_ids, rest.log_probs)
        event = TokenEvent(
            entry.handle,
            token_ids,
            reason,
            entry.timings(end_ns=time.monotonic_ns()),
            error,
            log_probs,
            rest.dropped_characters,
            beams,
            entry.speculation,
            () if entry.emitted else entry.prompt_log_probs,
            entry.cached_tokens,
            entry.kv_blocks_filled(self.limits, reason, beams),
            entry.request.metadata,
        )
        entry.on_event(event)


def cut_beam(beam: Beam, stop_words: StopWords) -> Beam:
    """Return a complete beam up to its first stop word; a token in which the word begins is dropped whole."""
    token_ids, log_probs, stopped, dropped_characters = stop_words.feed(beam.token_ids, beam.log_probs, ended=True)
    if not stopped:
        return beam
    if dropped_characters:
        token_ids, log_probs = token_ids[:-1], log_probs[:-1]
    return Beam(token_ids, log_probs, sum(log_probs) if beam.log_probs else beam.cumulative_log_prob)
