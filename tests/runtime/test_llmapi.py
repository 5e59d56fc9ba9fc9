"""The LLM API's adapter on the stand-in: what its answers, ends and failures become, in a process of its own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inflight.runtime.messages import (
    EventSink,
    FinishReason,
    GenerationRequest,
    Guide,
    GuideType,
    RequestError,
    Sampling,
    TokenEvent,
)
from inflight.runtime.process import EngineProcess
from tests.runtime.engine_process import Answer, wait_until
from tests.runtime.llmapi_standin import END_IDS, STANDIN, VERSION, engine_dir, options_of

REFUSED, FAILING, DEADLY = 10, 11, 12
WISHES = {"refuse_token": REFUSED, "fail_token": FAILING, "die_token": DEADLY}
PROMPT = (100, 101, 102)
ENDLESS = 90_000
Engines = Callable[..., EngineProcess]


@pytest.fixture(scope="module", autouse=True)
def standin() -> Iterator[None]:
    """On the path of this process' engines."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(STANDIN))
        yield


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """Shared, so no test may harm it: two requests in the library at a time."""
    directory = engine_dir(tmp_path_factory.mktemp("engines") / "llmapi", WISHES, max_batch_size=2)
    engine = EngineProcess(options_of(directory))
    yield engine
    engine.close()


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[Engines]:
    """Makes engines of a test's own."""
    made: list[EngineProcess] = []

    def make(wishes: dict[str, Any] | None = None, restart: bool = False, **arguments: Any) -> EngineProcess:
        directory = engine_dir(tmp_path / f"engine-{len(made)}", {**WISHES, **(wishes or {})}, **arguments)
        made.append(EngineProcess(options_of(directory), restart=restart))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


def answered(engine: EngineProcess, request: GenerationRequest) -> Answer:
    answer = Answer()
    engine.submit(request, answer)
    answer.end()
    return answer


def test_tokens_come_as_they_are_made_each_with_its_log_probability(engine: EngineProcess) -> None:
    answer = answered(engine, GenerationRequest(PROMPT, 7, END_IDS, log_probs=True))
    assert answer.tokens == [100, 101, 102, 100, 101, 102, 100]
    assert [log_prob for event in answer.events for log_prob in event.log_probs] == [-0.5] * 7
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


def test_a_draft_is_compared(engine: EngineProcess) -> None:
    answer = answered(engine, GenerationRequest(PROMPT, ENDLESS, END_IDS, draft_ids=(100, 101, 7)))
    assert answer.tokens == [100, 101, 102]
    speculation = answer.end().speculation
    assert speculation is not None
    assert (speculation.drafted, speculation.accepted) == (3, 2)


def test_words_to_keep_out_and_biases_reach_the_library(engine: EngineProcess) -> None:
    banned = answered(engine, GenerationRequest(PROMPT, 4, END_IDS, bad_ids=((101,), (102, 100))))
    assert banned.tokens == [100, 102, 102, 101 + 1]
    biased = answered(engine, GenerationRequest(PROMPT, 3, END_IDS, bias=((7, 0.5), (9, 2.0))))
    assert biased.tokens == [9, 9, 9]


@pytest.mark.parametrize(
    ("guide", "told"),
    [
        (Guide(GuideType.REGEX, "[a-z]+"), b"[a-z]+"),
        (Guide(GuideType.JSON_SCHEMA, '{"type": "object"}'), b'{"type": "object"}'),
        (Guide(GuideType.EBNF_GRAMMAR, 'root ::= "a"'), b'root ::= "a"'),
        (Guide(GuideType.JSON), b"json_object"),
    ],
)
def test_a_guide_reaches_the_library_and_ends_the_answer(engine: EngineProcess, guide: Guide, told: bytes) -> None:
    answer = answered(engine, GenerationRequest(PROMPT, 100, guide=guide))
    assert bytes(answer.tokens) == told
    assert answer.end().finish_reason is FinishReason.STOP


def test_a_seed_repeats_an_answer_and_without_one_answers_differ(engine: EngineProcess) -> None:
    wild = Sampling(temperature=1.0, top_p=1.0, seed=5)
    request = GenerationRequest(tuple(range(100, 300)), 20, END_IDS, wild)
    twins = [answered(engine, request).tokens for _ in range(2)]
    strangers = [answered(engine, replace(request, sampling=replace(wild, seed=None))).tokens for _ in range(2)]
    assert twins[0] == twins[1]
    assert strangers[0] != strangers[1]


def test_a_cancelled_answer_makes_room_for_the_next(engine: EngineProcess) -> None:
    long = [Answer(), Answer()]
    handles = [engine.submit(GenerationRequest(PROMPT, ENDLESS, END_IDS), answer) for answer in long]
    wait_until(lambda: all(answer.events for answer in long))
    waiting = Answer()
    engine.submit(GenerationRequest(PROMPT, 3, END_IDS), waiting)
    assert engine.stats().waiting == 1
    engine.cancel(handles[0])
    assert long[0].end().finish_reason is FinishReason.CANCELLED
    assert waiting.end().finish_reason is FinishReason.LENGTH
    engine.cancel(handles[1])
    assert long[1].end().finish_reason is FinishReason.CANCELLED
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.kv_blocks_reserved) == (0, 0, 0)


def test_a_higher_priority_leaves_the_queue_first(engine: EngineProcess) -> None:
    long = [Answer(), Answer()]
    handles = [engine.submit(GenerationRequest(PROMPT, ENDLESS, END_IDS), answer) for answer in long]
    wait_until(lambda: all(answer.events for answer in long))
    ended: list[int] = []
    answers = [Answer() for _ in range(3)]
    for number, answer in enumerate(answers):
        request = GenerationRequest((100 + number,), 50, END_IDS, priority=number)
        engine.submit(request, noting(answer, ended, number))
    engine.cancel(handles[0])
    for answer in answers:
        answer.end()
    engine.cancel(handles[1])
    long[1].end()
    assert ended == [2, 1, 0]


def noting(answer: Answer, ended: list[int], number: int) -> EventSink:
    def on_event(event: TokenEvent) -> None:
        if event.finish_reason is not None:
            ended.append(number)
        answer(event)

    return on_event


def test_a_deadline_ends_an_answer_with_what_it_has(engine: EngineProcess) -> None:
    deadline = time.monotonic_ns() + 300_000_000
    answer = answered(engine, GenerationRequest(PROMPT, ENDLESS, END_IDS, deadline_ns=deadline))
    assert answer.end().finish_reason is FinishReason.DEADLINE
    assert answer.tokens


def test_many_answers_come_side_by_side(engines: Engines) -> None:
    engine = engines(max_batch_size=64)
    answers = [Answer() for _ in range(64)]
    for number, answer in enumerate(answers):
        engine.submit(GenerationRequest((100 + number, 200), 40, END_IDS), answer)
    for number, answer in enumerate(answers):
        assert answer.end().finish_reason is FinishReason.LENGTH
        assert answer.tokens == [100 + number, 200] * 20


def test_what_the_library_refuses_or_fails_ends_alone(engine: EngineProcess) -> None:
    other = Answer()
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
    before = len(other.events)
    wait_until(lambda: len(other.events) > before)
    engine.cancel(handle)


def test_what_can_not_be_asked_for_is_refused_at_once(engine: EngineProcess) -> None:
    answer = answered(engine, GenerationRequest(PROMPT, 5, sampling=Sampling(beam_width=2)))
    error = answer.end().error
    assert error is not None
    assert error[0].startswith("beam_width is 2, and the engine was built for 1")
    with pytest.raises(RequestError, match="token id 512 is outside the vocabulary of 512 tokens"):
        engine.submit(GenerationRequest((512,), 5), Answer())


def test_beams_come_together_the_best_first(engines: Engines) -> None:
    engine = engines(max_beam_width=2)
    sampling = Sampling(beam_width=2)
    answer = answered(engine, GenerationRequest((100, 101, END_IDS[0]), 9, END_IDS, sampling, log_probs=True))
    best, second = answer.end().beams
    assert (best.token_ids, best.log_probs, best.cumulative_log_prob) == ((100, 101), (-0.5, -0.5), -1.5)
    assert second.token_ids == (101,)
    assert answer.end().finish_reason is FinishReason.STOP


@pytest.mark.parametrize("version", ["1.2.1", "1.3.0rc26"])
def test_a_dead_worker_ends_every_answer_and_the_engine_comes_back(
    engines: Engines, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VERSION, version)
    engine = engines(restart=True)
    first = engine.pid
    other, deadly = Answer(), Answer()
    engine.submit(GenerationRequest(PROMPT, ENDLESS, END_IDS), other)
    engine.submit(GenerationRequest((DEADLY, 1), 5, END_IDS), deadly)
    for answer in (other, deadly):
        error = answer.end().error
        assert error is not None
        assert error[1] == "engine_died"
    wait_until(lambda: engine.pid != first and _served(engine))


def _served(engine: EngineProcess) -> bool:
    try:
        return answered(engine, GenerationRequest(PROMPT, 2, END_IDS)).tokens == [100, 101]
    except RequestError:
        return False


def test_a_worker_whose_death_the_library_hides_is_missed_all_the_same(
    engines: Engines, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VERSION, "1.3.0rc26")
    engine = engines({"silent_death": True})
    answer = Answer()
    engine.submit(GenerationRequest((DEADLY, 1), 5, END_IDS), answer)
    error = answer.end().error
    assert error is not None
    assert error[1] == "engine_died"
    assert (
        "RuntimeError: TensorRT-LLM has ended: one of its processes died, or it was shut down" in capfd.readouterr().err
    )


def test_an_idle_engine_whose_worker_dies_ends_too(engines: Engines, tmp_path: Path) -> None:
    lines: list[str] = []
    directory = engine_dir(tmp_path / "idle")
    engine = EngineProcess(options_of(directory), report=lines.append)
    (worker,) = _children(engine.pid)
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: bool(lines))
    assert "died (status 1)" in lines[0]
    engine.close()


def test_nothing_outlives_a_closed_engine(engines: Engines) -> None:
    engine = engines()
    workers = _children(engine.pid)
    engine.close()
    assert workers
    wait_until(lambda: not any(os.path.exists(f"/proc/{worker}") for worker in workers))


def _children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


@pytest.mark.parametrize(
    ("wishes", "arguments", "said"),
    [
        (
            {"constructor_error": "CUDA out of memory.\nTried to allocate 2 GiB"},
            {},
            "CUDA out of memory. Tried to allocate 2 GiB",
        ),
        ({}, {"max_batchsize": 4}, "LLM got invalid argument: max_batchsize"),
        ({}, {"kv_cache_config": {"tokens_a_block": 4}}, "tokens_a_block"),
    ],
)
def test_an_engine_that_can_not_be_loaded_says_why_in_a_line(
    engines: Engines, wishes: dict[str, Any], arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(RuntimeError) as raised:
        engines(wishes, **arguments)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_where_tensorrt_llm_is_missing_the_container_is_named(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH")
    with pytest.raises(RuntimeError, match=r"serve this engine in NVIDIA's container \(nvcr.io/nvidia/tritonserver:"):
        engines()
