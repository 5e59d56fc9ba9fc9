"""Commands whose standard input or output is closed, full, or no longer read."""

from __future__ import annotations

import subprocess
import sys

import pytest

from inflight.commands.terminal.standard_streams import printable
from inflight.deploy.server.server import Server
from tests.client.support.leak_checks import idle
from tests.serving.metrics_page import page_when

_PROGRAM = "from inflight.cli import main; main()"


def run(arguments: str, redirection: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = f'{sys.executable} -c "{_PROGRAM}" {arguments} {redirection}'
    return subprocess.run(["bash", "-c", command], input=stdin, capture_output=True, check=False, timeout=60)


@pytest.mark.parametrize("command", ["generate -", "generate --messages -", "chat"])
def test_a_closed_input_is_wrong_usage(command: str) -> None:
    done = run(f"{command} --server 127.0.0.1:1", "<&-")
    assert done.returncode == 2
    assert done.stderr.endswith(b"\nError: standard input is closed; connect it to a file or a pipe.\n")


@pytest.mark.parametrize("command", ["generate - --max-tokens 2000", "chat --max-tokens 2000"])
def test_an_answer_that_finds_no_room_is_one_sentence_and_ends_on_the_server(
    paced_server: Server, command: str
) -> None:
    done = run(f"{command} --server {paced_server.grpc_address}", ">/dev/full", b"tell me of tea\n")
    assert (done.returncode, done.stderr) == (
        1,
        b"Error: standard output can't be written: No space left on device [disk_full]\n",
    )
    page_when(paced_server, idle)


def test_a_reader_that_leaves_a_conversation_is_no_traceback(paced_server: Server) -> None:
    done = run(f"chat --max-tokens 2000 --server {paced_server.grpc_address}", "| true", b"tell me of tea\n")
    assert done.stderr == b""
    page_when(paced_server, idle)


def test_an_answer_commands_no_terminal() -> None:
    assert printable("\x1b[31mred\x07\r\tand\x9b2J\nお茶\x7f") == "[31mred\tand2J\nお茶"
