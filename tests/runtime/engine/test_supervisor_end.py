"""How an EngineProcess ends: closed, not even begun, in the middle of a restart, or with its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import psutil
import pytest

from inflight.common.request_error import RequestError
from inflight.runtime.engine.interface import EngineOptions
from inflight.runtime.engine.supervisor import EngineProcess
from tests.fixtures.errors import raises
from tests.fixtures.waiting import wait_until
from tests.runtime.engine.fake_engine_process import ENDLESS, EventWaiter, options_of, request_of


def owned() -> set[object]:
    """This process's open files, threads and children; what tests before left may still be on its way out."""
    return {*os.listdir("/proc/self/fd"), *threading.enumerate(), *psutil.Process().children(recursive=True)}


def test_close_leaves_nothing_behind() -> None:
    before = owned()
    engine = EngineProcess(options_of(step_seconds="0.001"))
    engine.submit(request_of(max_tokens=ENDLESS), EventWaiter())
    engine.close()
    engine.close()
    assert engine._worker.wait_and_reap() == 0, "it had to be killed"
    with raises(RequestError, "engine_restarting", naming="closed"):
        engine.submit(request_of(), EventWaiter())
    wait_until(lambda: owned() <= before)


def test_a_failure_to_load_says_what_and_why_and_leaves_nothing() -> None:
    before = owned()
    with pytest.raises(RuntimeError) as raised:
        EngineProcess(EngineOptions("tensorrt", "/engines/demo", kv_cache_tokens=100))
    assert str(raised.value) == (
        "the engine can't load /engines/demo: ValueError: there is no engine 'tensorrt';"
        " choose one of fake, llmapi, openvino"
    )
    wait_until(lambda: owned() <= before)


def test_closing_while_it_restarts_ends_both(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    engine = EngineProcess(options_of(), restart=True, report=lines.append)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    os.kill(engine.pid, signal.SIGKILL)
    wait_until(lambda: any("trying again" in line for line in lines))
    engine.close()
    assert lines[-1].endswith("trying again in 5 s")
    with raises(RequestError, "engine_restarting", naming="closed"):
        engine.submit(request_of(), EventWaiter())


PARENT = """
import sys
import time
from inflight.runtime.engine.interface import EngineOptions
from inflight.runtime.messages import GenerationRequest
from inflight.runtime.engine.supervisor import EngineProcess

engine = EngineProcess(EngineOptions("fake", "", kv_cache_tokens=10_000, extra={"step_seconds": "0.001"}))
if sys.argv[1:] == ['busy']:
    engine.submit(GenerationRequest((5, 6), 4000), lambda event: None)
print(engine.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("how", ["idle", "busy"])
def test_the_engine_ends_when_its_parent_is_killed(how: str) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, how], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
