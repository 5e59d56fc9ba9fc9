"""Certificates and headers reach the server that a command is sent to, and what it says reaches the user."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2_grpc

import inflight
from inflight.deploy.server.server import Server
from tests.client.support.scripted_server import ScriptedServer, error, response, serving
from tests.fixtures.certificates import Certificates
from tests.fixtures.command_runner import CommandRunner
from tests.fixtures.waiting import wait_until


def answer(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
    """Says which of the callers' names it was sent, and dies."""
    yield response(f"{dict(context.invocation_metadata()).get('x-caller')}")
    yield error("in ensemble 'ensemble', the engine's process died (signal 9) [engine_died]")


@contextmanager
def trusting(certificates: Certificates) -> Iterator[str]:
    """A server that talks only to those with a certificate of our authority; its address."""
    server = grpc.server(ThreadPoolExecutor(4))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(ScriptedServer(answer), server)
    own = (certificates.server.key.read_bytes(), certificates.server.certificate.read_bytes())
    credentials = grpc.ssl_server_credentials([own], certificates.ca.read_bytes(), require_client_auth=True)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    yield f"grpcs://127.0.0.1:{port}"
    server.stop(grace=None).wait()


def test_the_options_name_what_both_sides_must_trust(
    generate: CommandRunner, status: CommandRunner, certificates: Certificates
) -> None:
    own = certificates.client
    with trusting(certificates) as address:
        trusted = ("--server", address, "--ca", str(certificates.ca))
        known = (*trusted, "--certificate", str(own.certificate), "--key", str(own.key))
        assert status(*known).code == 0
        for options in (trusted, ("--server", address)):
            done = status(*options)
            assert done.code == 1
            assert done.out.startswith(f"NOT READY   {address}: ")
        done = generate("tell", *known, "--header", "X-Caller: the shop: 17")
    assert (done.code, done.out) == (1, "the shop: 17")
    assert done.err == "Error: the engine's process died (signal 9) [engine_died]\n"


def test_certificates_without_tls_are_a_mistake(status: CommandRunner, certificates: Certificates) -> None:
    done = status("--server", "127.0.0.1:1", "--ca", str(certificates.ca))
    assert done.code == 1
    assert "write grpcs:// or https://" in done.err


def test_what_fails_for_now_is_sent_again_where_that_is_asked_for(generate: CommandRunner) -> None:
    asked = 0

    def busy_once(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        nonlocal asked
        asked += 1
        yield error("the queue is full [overloaded]") if asked == 1 else response("tea", "stop", 3, 1)

    with serving(busy_once) as (_, address):
        done = generate("tell", "--server", address)
        assert done.err == "Error: the queue is full [overloaded]\n"
        asked = 0
        assert generate("tell", "--server", address, "--retry-timeout", "60").out == "tea\n"


def test_a_server_of_another_version_is_told_in_a_line(
    generate: CommandRunner, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], paced_server: Server
) -> None:
    monkeypatch.setattr(inflight, "__version__", "9.8.7")
    done = generate("tea", "--max-tokens", "2", "--server", paced_server.grpc_address)
    assert done.code == 0
    lines = done.err.splitlines()
    assert sum(line.startswith("Warning: the server was deployed by inflight ") for line in lines) == 1

    # The server says so too, once; its log is this process's standard error, and no later test should find it there.
    def server_has_said_so() -> bool:
        lines.extend(capsys.readouterr().err.splitlines())
        return any("9.8.7" in line and not line.startswith("Warning: ") for line in lines)

    wait_until(server_has_said_so)
