"""A forked child either can use gRPC or gets an error at once; its parent goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.client._grpc.scripted_calls import script
from tests.client._grpc.transports import serving_at

ROOT = Path(__file__).parents[3]


def test_a_child_can_or_is_told_that_it_cannot_and_the_parent_goes_on() -> None:
    # gRPC's own handlers block `fork` once in a while where a client has just been closed.
    environment = os.environ | {"GRPC_ENABLE_FORK_SUPPORT": "0"}
    with serving_at(script) as where:
        done = subprocess.run(
            [sys.executable, "-m", "tests.client._grpc.fork_program", where],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=100,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == [
        # before gRPC was used
        "tea and cake",
        "True",
        # while the parent's connection is open
        "client_forked",
        "client_forked",
        "client_forked",
        "client_forked",
        "[None, None]",
        "tea and cake",  # the parent
        # after it was closed, which ends gRPC's threads only some time later
        "client_forked",
        "True",  # the parent
        "client_forked",
        "client_forked",
        "True",  # the parent
        "client_forked",
        "",
    ]
