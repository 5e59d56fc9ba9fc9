"""A run of pytest in which processes of a shared server are killed: what runs once more, and what is reported."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.engines import ROOT, TinyEngine

PLUGINS = ["tests.fixtures.crashes", "tests.fixtures.engines", "tests.fixtures.server"]
# Each test counts its attempts in a file. The number of a signal that was not sent is 0.
TESTS = """
import os
from pathlib import Path

import pytest
from inflight_client import Client, InflightError

ATTEMPTS = Path("attempts")
TRITON = "tritonserver"
STUB = "the stub of preprocessing"
ENGINE = "the engine's process of tensorrt_llm"


def attempt(name):
    with ATTEMPTS.open("a") as file:
        file.write(name + "\\n")
    return ATTEMPTS.read_text().splitlines().count(name)


def kill(server, victim, number):  # and be gone once a client has seen it
    [pid] = [member.pid for member in server.instance.process_tree if member.name == victim]
    with Client(server.grpc_address) as client, client.stream("tea", max_tokens=1900) as stream:
        next(stream)
        os.kill(pid, number)
        with pytest.raises(InflightError):
            stream.read()


@pytest.mark.parametrize(
    ("victim", "number", "times"),
    [(STUB, 11, 1), (TRITON, 6, 1), (STUB, 11, 2), (ENGINE, 11, 1), (STUB, 0, 0)],
)
def test_alone(paced_server, victim, number, times):
    if attempt(f"{victim} {number} {times}") <= times:
        kill(paced_server, victim, number)
        assert not "a wrong answer"
    assert times == 1
    with Client(paced_server.grpc_address) as client:
        assert client.generate("tea", max_tokens=3).output_tokens == 3


@pytest.fixture(scope="module")
def made(paced_server):
    first = attempt("made") == 1
    if first:
        kill(paced_server, STUB, 11)
    return not first


def test_that_does_not_look_at_what_was_made(made):
    attempt("first of the module")


@pytest.mark.parametrize("number", [1, 2])
def test_that_looks_at_what_was_made(made, number):
    attempt("of the module")
    assert made
"""


@pytest.mark.slow
def test_what_failed_of_a_crash_runs_once_more_and_nothing_else_does(tmp_path: Path, tiny_engine: TinyEngine) -> None:
    tiny_engine("llama")
    (tmp_path / "test_these.py").write_text(TESTS)
    (tmp_path / "empty.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-c", "empty.ini", "-n", "1", "-p", "no:cacheprovider"]
    command += [argument for plugin in PLUGINS for argument in ("-p", plugin)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    attempts = (tmp_path / "attempts").read_text().splitlines()
    assert {name: attempts.count(name) for name in attempts} == {
        "the stub of preprocessing 11 1": 2,
        "tritonserver 6 1": 2,
        "the stub of preprocessing 11 2": 2,  # it fails again
        "the engine's process of tensorrt_llm 11 1": 1,
        "the stub of preprocessing 0 0": 1,
        "made": 2,
        "first of the module": 1,
        "of the module": 3,
    }, done.stdout
    assert re.search(r"= 3 failed, 5 passed in ", done.stdout), done.stdout
    told = done.stdout.partition("Triton crashed by itself")[2]
    crashed = re.findall(r"^(tritonserver|the stub of \S+) \(pid \d+\) ended with signal (\d+)", told, re.MULTILINE)
    stub = ("the stub of preprocessing", "11")
    assert crashed == [stub, ("tritonserver", "6"), stub, stub, stub], done.stdout
    assert "Signal (6) received" in told  # of the server's log
    assert "a wrong answer" in told
