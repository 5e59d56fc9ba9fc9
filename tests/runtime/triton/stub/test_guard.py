"""A stub and what it has started end with the server, even where no thread of the stub can run Python any more."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from inflight.common.process_tree import start_time
from inflight.runtime.triton.stub.guard import wait_for_any_exit

SOON = 60.0
# It starts a stub, says what runs, and runs on.
SERVER = """
import subprocess, sys, time
FORBID
subprocess.run([sys.executable, "-c", sys.argv[1]])
time.sleep(600)
"""
# It has a child, and then waits with the interpreter lock held.
STUB = """
import ctypes, subprocess, sys
from inflight.runtime.triton.stub.guard_launcher import end_with_server

end_with_server()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("ready", flush=True)
ctypes.PyDLL(None).sleep(600)
"""
# As a sandbox forbids it: a filter of three rules, by which system call 434 fails with EPERM.
FORBID_PIDFD = """
import ctypes, os, struct
rules = struct.pack("HBBIHBBIHBBIHBBI", 0x20, 0, 0, 0, 0x15, 0, 1, 434, 6, 0, 0, 0x50001, 6, 0, 0, 0x7FFF0000)
memory = ctypes.create_string_buffer(rules)
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 4, ctypes.addressof(memory)))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0
try:
    os.pidfd_open(os.getpid())
except PermissionError:
    pass
else:
    sys.exit("the filter does nothing")
"""


@pytest.mark.parametrize("forbid", ["", FORBID_PIDFD], ids=["pidfd", "no-pidfd"])
@pytest.mark.parametrize("victim", ["server", "stub"])
def test_all_that_a_stub_has_started_ends_with_the_server_or_the_stub(victim: str, forbid: str) -> None:
    command = [sys.executable, "-c", SERVER.replace("FORBID", forbid), STUB]
    server = psutil.Popen(command, stdout=subprocess.PIPE)
    try:
        assert server.stdout.readline() == b"ready\n"
        [stub] = server.children()
        family = server.children(recursive=True)
        (server if victim == "server" else stub).kill()
        left = psutil.wait_procs(family, timeout=SOON)[1]
        for one in left:
            one.kill()
        assert left == []
        assert victim == "server" or server.is_running()
    finally:
        server.kill()
        server.communicate()


def test_a_python_that_was_built_without_pidfd_watches_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    with subprocess.Popen(["sleep", "600"]) as process:
        moment = start_time(process.pid)
        assert moment is not None
        process.kill()
    wait_for_any_exit({process.pid: moment})
