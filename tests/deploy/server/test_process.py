"""A server's process that the machine refuses leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from inflight.deploy.errors import DeployError
from inflight.deploy.server.process import ExitPoll, ProcessInfo, TritonProcess
from tests.fixtures.errors import raises
from tests.fixtures.waiting import wait_until

SHM_PREFIX = "inflight-0123456789ab-"
TOO_LONG = "x" * 200_000
"""Linux takes no argument and no variable of more than 128 KiB."""


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    open_before, children_before = set(os.listdir("/proc/self/fd")), psutil.Process().children()
    yield
    # The threads that watch the servers of other tests may open a file meanwhile.
    wait_until(lambda: set(os.listdir("/proc/self/fd")) <= open_before)
    assert set(psutil.Process().children()) <= set(children_before)


def refuse_the_log(tmp_path: Path) -> TritonProcess:
    return TritonProcess(["/bin/true"], {}, tmp_path, SHM_PREFIX)


def refuse_the_process(tmp_path: Path) -> TritonProcess:
    return TritonProcess(["/bin/true"], {"LONG": TOO_LONG}, tmp_path / "log", SHM_PREFIX)


@pytest.mark.parametrize("start", [refuse_the_log, refuse_the_process])
def test_a_refused_start_leaves_no_open_file(tmp_path: Path, start: Callable[[Path], TritonProcess]) -> None:
    with pytest.raises(OSError, match=r"Is a directory|Argument list too long"):
        start(tmp_path)


def test_a_guard_that_does_not_come_up_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with raises(DeployError, "server_start_failed", naming="guard"):
        TritonProcess(["/bin/true"], {}, tmp_path / "log", SHM_PREFIX)


@pytest.mark.parametrize("late", [False, True])
def test_a_server_that_ends_leaves_nothing_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    if late:  # the supervisor reads what the guard says only once it has ended
        server_pid = TritonProcess._server_pid
        monkeypatch.setattr(TritonProcess, "_server_pid", lambda self: (self._guard.wait(60), server_pid(self))[1])
    process = TritonProcess(["/bin/sh", "-c", "exit 7"], {}, tmp_path / "log", SHM_PREFIX)
    assert process.wait(60)
    assert process.poll() == 7
    process.stop(1)


@pytest.mark.parametrize("pidfd", [True, False])
def test_an_exit_is_noticed_whether_or_not_python_has_pidfds(pidfd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not pidfd:
        monkeypatch.delattr(os, "pidfd_open")
    with subprocess.Popen(["sleep", "600"]) as process:
        exits = ExitPoll([ProcessInfo(process.pid, psutil.Process(process.pid).create_time(), "sleep")])
        assert exits.may_have_exited() is not pidfd
        process.kill()
        wait_until(exits.may_have_exited)
    exits.close()
