"""What one request brings upon itself in the engine's process, while the others go on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from inflight.runtime.engine.supervisor import EngineProcess
from inflight.runtime.messages import FinishReason, GenerationRequest
from tests.fixtures.waiting import wait_until
from tests.runtime.engine.fake_engine_process import ENDLESS, EventWaiter, options_of, request_of
from tests.text.example_tokenizers import tokenizer_of

REFUSE_TOKEN = 3


@pytest.fixture(scope="module")
def engine() -> Iterator[EngineProcess]:
    """An engine that tests may share, since they leave it standing."""
    engine = EngineProcess(options_of(step_seconds="0.002", refuse_token=str(REFUSE_TOKEN)))
    yield engine
    engine.close()


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


def test_what_the_library_refuses_ends_alone(engine: EngineProcess) -> None:
    refused, other = EventWaiter(), EventWaiter()
    engine.submit(GenerationRequest((REFUSE_TOKEN,), 5), refused)
    engine.submit(request_of(), other)
    assert refused.end().error == (
        "the engine refused the request: the fake engine refused because it was asked to",
        "invalid_request",
    )
    assert other.end().finish_reason is FinishReason.LENGTH


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
