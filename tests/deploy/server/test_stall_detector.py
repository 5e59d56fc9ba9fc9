from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from inflight.deploy.server.stall_detector import StallDetector, measure_usage
from tests.fixtures.waiting import wait_until

SECONDS = 2.0
SLEEPS = "import time; time.sleep(600)"
COMPUTES = "while True: pass"
# Until the pipe is written to, opening it keeps the new process from beginning, and that its parent in the state
# in which a process waits for a disk.
WAITS_FOR_DISK = """
import os, sys
os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)])
"""


@pytest.mark.parametrize(("program", "hangs"), [(SLEEPS, True), (COMPUTES, False), (WAITS_FOR_DISK, False)])
def test_what_neither_computes_nor_waits_for_a_disk_hangs(program: str, hangs: bool, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    process = subprocess.Popen([sys.executable, "-c", program, pipe])
    try:
        stall = StallDetector(lambda: measure_usage([psutil.Process(process.pid)]), SECONDS)
        if hangs:
            wait_until(stall.is_stalled)
        began = time.monotonic()
        while not hangs and time.monotonic() < began + 2 * SECONDS:
            assert not stall.is_stalled()
            time.sleep(0.1)
    finally:
        process.kill()
        os.close(os.open(pipe, os.O_RDWR))
        process.wait()
