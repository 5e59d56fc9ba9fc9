"""EngineProcess over the fake engine: a real child process, what requests meet there, and its deaths."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from inflight.common.request_error import RequestError
from inflight.runtime.engine import supervisor as process_module
from inflight.runtime.engine.fake import expected_token
from inflight.runtime.engine.supervisor import EngineProcess
from inflight.runtime.messages import FinishReason, GenerationRequest, TokenEvent
from tests.fixtures.errors import raises
from tests.fixtures.waiting import wait_until
from tests.runtime.engine.fake_engine_process import (
    DIE_TOKEN,
    ENDLESS,
    FAIL_TOKEN,
    SOON,
    EventWaiter,
    options_of,
    request_of,
)
from tests.text.example_tokenizers import tokenizer_of


@pytest.fixture(scope="module")
def engine() -> Iterator[EngineProcess]:
    """An engine that tests may share, since they leave it standing."""
    engine = EngineProcess(options_of(step_seconds="0.002"))
    yield engine
    engine.close()


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def mortal(lines: list[str]) -> Iterator[EngineProcess]:
    """An engine to be killed, which is not started again."""
    engine = EngineProcess(options_of(step_seconds="0.002"), report=lines.append)
    yield engine
    engine.close()


@pytest.fixture
def restarting(lines: list[str]) -> Iterator[EngineProcess]:
    engine = EngineProcess(options_of(step_seconds="0.002"), restart=True, report=lines.append)
    yield engine
    engine.close()


def test_tokens_arrive_one_event_a_step(engine: EngineProcess) -> None:
    answer, request = EventWaiter(), request_of(max_tokens=20)
    handle = engine.submit(request, answer)
    last = answer.end()
    assert answer.tokens == [expected_token(request, position) for position in range(20)]
    assert len(answer.events) == 20
    assert (last.handle, last.finish_reason) == (handle, FinishReason.LENGTH)
    assert last.timings is not None
    assert last.timings.end_ns <= time.monotonic_ns()


def test_cancel_ends_a_request_with_a_word(engine: EngineProcess) -> None:
    answer = EventWaiter()
    handle = engine.submit(request_of(max_tokens=ENDLESS), answer)
    wait_until(lambda: len(answer.events) > 3)
    engine.cancel(handle)
    assert answer.end().finish_reason is FinishReason.CANCELLED
    assert len(answer.tokens) < ENDLESS
    engine.cancel(handle)
    engine.cancel(987_654)
    wait_until(lambda: engine.stats().running == 0)


def test_stats_tell_what_runs(engine: EngineProcess) -> None:
    wait_until(lambda: engine.stats().running == 0)  # of what the tests before have left
    answer = EventWaiter()
    handle = engine.submit(request_of(max_tokens=ENDLESS), answer)
    wait_until(lambda: bool(answer.events))
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.kv_blocks_reserved) == (1, 0, 1876)
    engine.cancel(handle)
    answer.end()
    assert engine.stats().kv_blocks_reserved == 0


def test_what_the_engine_can_not_take_is_refused_before_it_travels(engine: EngineProcess) -> None:
    with raises(RequestError, "invalid_token_ids"):
        engine.submit(GenerationRequest((100_000,), 5), EventWaiter())


def test_a_sink_that_raises_loses_only_its_own_request(mortal: EngineProcess, lines: list[str]) -> None:
    def broken(event: TokenEvent) -> None:
        raise OSError("the stream is gone")

    answer = EventWaiter()
    handle = mortal.submit(request_of(max_tokens=ENDLESS), broken)
    mortal.submit(request_of(max_tokens=100), answer)
    assert answer.end().finish_reason is FinishReason.LENGTH
    wait_until(lambda: mortal.stats().running == 0)
    assert lines == [f"an event of request {handle} could not be delivered: the stream is gone"]


def test_a_killed_engine_ends_every_stream_at_once_and_refuses_from_then_on(
    mortal: EngineProcess, lines: list[str]
) -> None:
    answers = [EventWaiter() for _ in range(8)]
    for answer in answers:
        mortal.submit(request_of(max_tokens=ENDLESS), answer)
    wait_until(lambda: all(answer.events for answer in answers))
    os.kill(mortal.pid, signal.SIGKILL)
    for answer in answers:
        end = answer.end()
        assert end.finish_reason is FinishReason.ERROR
        assert end.error == (
            "the engine's process died (signal 9) in the middle of the answer; send the request again",
            "engine_died",
        )
    for refused in (lambda: mortal.submit(request_of(), EventWaiter()), mortal.stats):
        with raises(RequestError, "engine_restarting"):
            refused()
    wait_until(lambda: bool(lines))
    assert lines == [f"the engine's process {mortal.pid} died (signal 9); 8 requests ended with an error"]


def test_a_sink_that_raises_when_the_engine_dies_keeps_no_other_from_its_end(mortal: EngineProcess) -> None:
    def broken(event: TokenEvent) -> None:
        if event.finish_reason is FinishReason.ERROR:
            raise OSError("the stream is gone")

    answer = EventWaiter()
    mortal.submit(request_of(max_tokens=ENDLESS), broken)
    mortal.submit(request_of(max_tokens=ENDLESS), answer)
    os.kill(mortal.pid, signal.SIGKILL)
    assert answer.end().finish_reason is FinishReason.ERROR


def test_an_engine_that_may_restart_answers_again(restarting: EngineProcess, lines: list[str]) -> None:
    first_pid, lost = restarting.pid, EventWaiter()
    restarting.submit(GenerationRequest((DIE_TOKEN,), 5), lost)
    end = lost.end()
    assert end.error is not None
    assert end.error[1] == "engine_died"
    wait_until(lambda: any("is ready" in line for line in lines))
    assert restarting.pid != first_pid
    assert restarting.stats().running == 0  # no request is left from before
    answer = EventWaiter()
    restarting.submit(request_of(), answer)
    assert answer.end().finish_reason is FinishReason.LENGTH


def test_a_step_that_raises_ends_the_process_and_says_why(capfd: pytest.CaptureFixture[str]) -> None:
    engine = EngineProcess(options_of(step_seconds="0.002"))
    failing, other = EventWaiter(), EventWaiter()
    engine.submit(request_of(max_tokens=ENDLESS), other)
    wait_until(lambda: bool(other.events))
    engine.submit(GenerationRequest((FAIL_TOKEN,), 5), failing)
    for answer in (failing, other):
        end = answer.end()
        assert end.error is not None
        assert end.error[1] == "engine_died"
        assert "(status 1)" in end.error[0]
    engine.close()
    errors = capfd.readouterr().err
    assert "Traceback" in errors
    assert "RuntimeError: the fake engine failed because it was asked to" in errors


def test_stats_asked_of_a_dying_engine_do_not_wait_for_ever(mortal: EngineProcess) -> None:
    os.kill(mortal.pid, signal.SIGSTOP)
    failures: list[str] = []

    def ask() -> None:
        try:
            mortal.stats()
        except RequestError as error:
            failures.append(error.code)

    askers = [threading.Thread(target=ask) for _ in range(3)]
    for asker in askers:
        asker.start()
    wait_until(lambda: len(mortal._stats_futures) == 3)
    os.kill(mortal.pid, signal.SIGKILL)
    for asker in askers:
        asker.join(SOON)
    assert failures == ["engine_died"] * 3


def test_an_engine_that_fails_to_restart_is_tried_again(
    restarting: EngineProcess, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "RESTART_DELAY_S", 0.2)
    working = sys.executable
    monkeypatch.setattr(sys, "executable", "/bin/false")
    os.kill(restarting.pid, signal.SIGKILL)
    wait_until(lambda: any("trying again" in line for line in lines))
    monkeypatch.setattr(sys, "executable", working)
    wait_until(lambda: any("is ready" in line for line in lines))
    answer = EventWaiter()
    restarting.submit(request_of(), answer)
    assert answer.end().finish_reason is FinishReason.LENGTH


def test_a_flood_of_long_prompts_from_many_threads_does_not_lock_up(engine: EngineProcess) -> None:
    """The socket fills up one way while events, some of them for broken sinks, flow the other way."""
    answers = [EventWaiter() for _ in range(500)]

    def broken(event: TokenEvent) -> None:
        raise OSError("the stream is gone")

    def submit(part: list[EventWaiter]) -> None:
        for number, answer in enumerate(part):
            engine.submit(GenerationRequest(tuple(range(10, 500)) * 7, 5), answer)
            if number % 10 == 0:
                engine.submit(request_of(max_tokens=50), broken)

    threads = [threading.Thread(target=submit, args=(answers[start::4],)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
        assert not thread.is_alive()
    for answer in answers:
        assert answer.end().finish_reason is FinishReason.LENGTH
        assert answer.tokens == [10, 11, 12, 13, 14]


def test_a_bounded_queue_refuses_what_would_wait_too_long() -> None:
    options = replace(options_of(step_seconds="0.002"), max_num_sequences=1, max_queue_size=2)
    engine = EngineProcess(options)
    answers = [EventWaiter() for _ in range(5)]
    running = engine.submit(request_of(max_tokens=ENDLESS), answers[0])
    wait_until(lambda: bool(answers[0].events))
    for answer in answers[1:]:
        engine.submit(request_of(), answer)
    for answer in answers[3:]:
        assert answer.end().error == (
            "Exceeds maximum queue size (Maximum queue size of 2 has been reached); send the request again later",
            "overloaded",
        )
    engine.cancel(running)
    for answer in answers[1:3]:
        assert answer.end().finish_reason is FinishReason.LENGTH
    engine.close()


def test_stop_words_as_text_are_found_with_the_tokenizer_of_the_engines_directory(tmp_path: Path) -> None:
    tokenizer = tokenizer_of("byte_level")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    engine = EngineProcess(replace(options_of(), model_dir=str(tmp_path)))
    answer = EventWaiter()
    prompt = tuple(tokenizer.encode("the tea tin", add_special_tokens=False).ids)
    engine.submit(GenerationRequest(prompt, ENDLESS, stop_texts=("inthe",)), answer)
    end = answer.end()
    assert end.finish_reason is FinishReason.STOP_WORD
    text = tokenizer.decode(answer.tokens)
    assert text[: len(text) - end.dropped_characters] == "the tea t"
    engine.close()


def test_an_engine_whose_machine_forbids_its_cores_computes_on_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFLIGHT_ENGINE_CORES", "1000")  # there are not so many: refused, as by a sandbox
    engine, answer = EngineProcess(options_of()), EventWaiter()
    engine.submit(request_of(), answer)
    assert answer.end().finish_reason is FinishReason.LENGTH
    engine.close()


def test_an_engine_without_a_tokenizer_refuses_stop_words_as_text_and_goes_on(engine: EngineProcess) -> None:
    refused, other = EventWaiter(), EventWaiter()
    engine.submit(replace(request_of(), stop_texts=("tea",)), refused)
    engine.submit(request_of(), other)
    error = refused.end().error
    assert error is not None
    assert error[0].startswith("the engine can't search text for stop words: ")
    assert error[1] == "invalid_request"
    assert other.end().finish_reason is FinishReason.LENGTH
