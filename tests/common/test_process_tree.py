"""What a library has started ends with the engine, whichever process started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from inflight.common.process_tree import TAG_VARIABLE, kill_tagged
from tests.fixtures.waiting import wait_until

_FAMILY = """
import subprocess, sys, time
from inflight.common.process_tree import kill_descendants

sleep = "import time; time.sleep(600)"
nurse = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {sleep!r}]).pid, flush=True); {sleep}"
child = subprocess.Popen([sys.executable, "-c", nurse], stdout=subprocess.PIPE)
print(child.pid, int(child.stdout.readline()), flush=True)
kill_descendants()
print(child.wait(), flush=True)
"""


def test_children_and_theirs_are_ended_and_nobody_else() -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        found = subprocess.run([sys.executable, "-c", _FAMILY], capture_output=True, text=True, check=True)
        child, grandchild, status = map(int, found.stdout.split())
        assert status == -9
        wait_until(lambda: not _runs(child) and not _runs(grandchild), "the end of the descendants")
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def _runs(pid: int) -> bool:
    """A dead process may stay in the table until its parent looks after it."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
    finally:
        os.sched_yield()


_ORPHAN = """
import subprocess, sys
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
print(subprocess.Popen(sleep, start_new_session=True, stdout=subprocess.DEVNULL).pid, flush=True)
"""


def test_orphans_are_known_by_their_mark_and_gone_afterwards() -> None:
    """Their parent is dead, and they have a separate session."""
    pids = []
    try:
        for mark in ("ours", "another"):
            command = [sys.executable, "-c", _ORPHAN]
            pids.append(
                int(subprocess.run(command, stdout=subprocess.PIPE, env={**os.environ, TAG_VARIABLE: mark}).stdout)
            )
        kill_tagged("ours")
        assert [_runs(pid) for pid in pids] == [False, True]
    finally:
        for pid in pids:
            if _runs(pid):
                os.kill(pid, signal.SIGKILL)
