"""The LLM API's engine dies, is closed, or can't be loaded: what is said, what comes back, what is left."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from inflight.common.request_error import RequestError
from inflight.runtime.engine.supervisor import EngineProcess
from inflight.runtime.messages import GenerationRequest
from tests.fixtures.errors import raises
from tests.fixtures.waiting import wait_until
from tests.runtime.backends.llmapi.standin import (
    DEADLY,
    END_IDS,
    ENDLESS,
    PROMPT,
    VERSION,
    Engines,
    answered,
    engine_dir,
    options_of,
)
from tests.runtime.engine.fake_engine_process import EventWaiter


@pytest.mark.parametrize("version", ["1.2.1", "1.3.0rc26"])
def test_a_dead_worker_ends_every_answer_and_the_engine_comes_back(
    llmapi_engines: Engines, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VERSION, version)
    engine = llmapi_engines(restart=True)
    first = engine.pid
    other, deadly = EventWaiter(), EventWaiter()
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
    llmapi_engines: Engines, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VERSION, "1.3.0rc26")
    engine = llmapi_engines({"silent_death": True})
    answer = EventWaiter()
    engine.submit(GenerationRequest((DEADLY, 1), 5, END_IDS), answer)
    error = answer.end().error
    assert error is not None
    assert error[1] == "engine_died"
    assert (
        "RuntimeError: TensorRT-LLM has ended: one of its processes died, or it was shut down" in capfd.readouterr().err
    )


def test_an_idle_engine_whose_worker_dies_ends_too(llmapi_engines: Engines, tmp_path: Path) -> None:
    lines: list[str] = []
    directory = engine_dir(tmp_path / "idle")
    engine = EngineProcess(options_of(directory), report=lines.append)
    (worker,) = _children(engine.pid)
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: bool(lines))
    assert "died (status 1)" in lines[0]
    engine.close()


def test_nothing_outlives_a_closed_engine(llmapi_engines: Engines) -> None:
    engine = llmapi_engines()
    workers = _children(engine.pid)
    engine.close()
    assert workers
    wait_until(lambda: not any(map(_runs, workers)))


@pytest.mark.parametrize("restart", [True, False])
def test_a_killed_engine_takes_its_workers_along_though_they_hear_nothing(
    llmapi_engines: Engines, restart: bool
) -> None:
    engine = llmapi_engines(restart=restart)
    first, (worker,) = engine.pid, _children(engine.pid)
    os.kill(worker, signal.SIGSTOP)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not _runs(worker))
    if restart:
        wait_until(lambda: engine.pid != first and _served(engine))


def test_workers_of_an_engine_that_can_not_be_loaded_are_gone_when_that_is_said(
    llmapi_engines: Engines, tmp_path: Path
) -> None:
    with raises(RuntimeError, naming=("rank 1", "CUDA")):
        llmapi_engines({"late_error": "rank 1: CUDA out of memory"})
    (told,) = tmp_path.glob("engine-*/checkpoint/worker.pid")
    assert not _runs(int(told.read_text()))


def _runs(pid: int) -> bool:
    """Whether it is more than an entry that its parent has not looked at yet."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


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
        ({}, {"max_batchsize": 4}, "max_batchsize"),
        ({}, {"kv_cache_config": {"tokens_a_block": 4}}, "tokens_a_block"),
    ],
)
def test_an_engine_that_can_not_be_loaded_says_why_in_a_line(
    llmapi_engines: Engines, wishes: dict[str, Any], arguments: dict[str, Any], said: str
) -> None:
    with raises(RuntimeError, naming=said) as raised:
        llmapi_engines(wishes, **arguments)
    assert "\n" not in str(raised.value)


def test_where_tensorrt_llm_is_missing_the_container_is_named(
    llmapi_engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH")
    with raises(RuntimeError, naming="nvcr.io/nvidia/tritonserver"):
        llmapi_engines()
