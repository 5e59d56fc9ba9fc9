"""Both gRPC transports keep to deadlines, give typed errors, and leave nothing behind, whatever the server does."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from inflight_client import InflightError
from inflight_client.deadline import NEVER, Deadline
from inflight_client.errors import DeadlineExceeded, ServerGone

from tests.client._grpc.scripted_calls import SOON, script
from tests.client._grpc.transports import failure, request, serving_at
from tests.client.support import scripted_server
from tests.client.support.leak_checks import nothing_left
from tests.client.support.transports import TransportCaller, TransportVariant, both_grpc
from tests.fixtures.errors import raises
from tests.fixtures.waiting import wait_until


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving_at(script) as where:
        yield where


@both_grpc
def test_responses_come_one_by_one_and_end(way: TransportVariant, address: str) -> None:
    with nothing_left(), way.to(address) as caller:
        assert caller.texts(request()) == ["tea", " and", " cake"]
        assert caller.texts(request(), Deadline(SOON), Deadline(SOON)) == ["tea", " and", " cake"]
        assert caller.ask("model_ready", "ensemble", Deadline(SOON)) is True
        assert caller.ask("model_ready", "nobody", NEVER) is False


@both_grpc
@pytest.mark.parametrize(
    ("model", "whole", "first", "sentence"),
    [
        ("silent", 0.3, None, "the answer did not arrive within 0.3 seconds"),
        ("silent", SOON, 0.3, "the first token did not arrive within 0.3 seconds"),
        ("silent", 0.3, SOON, "the answer did not arrive within 0.3 seconds"),
        ("silent", None, 0.3, "the first token did not arrive within 0.3 seconds"),
        ("stuck", 0.3, None, "the answer did not arrive within 0.3 seconds"),
        ("stuck", 0.5, SOON, "the answer did not arrive within 0.5 seconds"),
    ],
)
def test_the_deadline_that_is_over_first_ends_the_call(
    way: TransportVariant, address: str, model: str, whole: float | None, first: float | None, sentence: str
) -> None:
    with nothing_left(), way.to(address) as caller:
        begun = time.monotonic()
        late = Deadline(whole), Deadline(first, "the first token")
        assert failure(lambda: caller.texts(request(model), *late)) == (
            "deadline_exceeded",
            f"{sentence}; raise the timeout",
        )
        shortest = min(seconds for seconds in (whole, first) if seconds is not None)
        assert shortest - 0.01 <= time.monotonic() - begun < SOON


@both_grpc
def test_a_first_token_in_time_makes_its_deadline_void(way: TransportVariant, address: str) -> None:
    with way.to(address) as caller:
        for whole in (1, 4, 16):  # a busy machine gets more time
            responses = caller.responses(request("stuck"), Deadline(whole), Deadline(0.7 * whole, "the first token"))
            try:
                first = next(responses)
                break
            except DeadlineExceeded:
                continue
        assert first.text("text_output") == "tea"
        with raises(InflightError, "deadline_exceeded", naming=f"{whole} seconds"):
            next(responses)


@both_grpc
def test_what_is_too_late_is_not_sent(way: TransportVariant) -> None:
    with scripted_server.serving(script) as (server, where), way.to(where) as caller:
        with raises(InflightError, "deadline_exceeded", naming="0 seconds"):
            caller.texts(request(), Deadline(0))
        with raises(InflightError, "deadline_exceeded", naming="0 seconds"):
            caller.ask("live", Deadline(0))
        assert not server.requests


@both_grpc
def test_leaving_early_cancels_on_the_server(way: TransportVariant) -> None:
    with scripted_server.serving(script) as (server, where), way.to(where) as caller:
        responses = caller.responses(request("stuck"))
        assert next(responses).text("text_output") == "tea"
        assert not server.cancelled.is_set()
        responses.close()
        assert server.cancelled.wait(SOON)
        assert caller.texts(request()) == ["tea", " and", " cake"]


@both_grpc
@pytest.mark.parametrize(
    ("model", "code", "sentence"),
    [
        ("refusing", "overloaded", "no room"),
        ("mismatched_response", "answer_damaged", ("'r-1'", "'r-2'")),
        ("status UNAUTHENTICATED:who are you", "permission_denied", "who are you"),
        ("status RESOURCE_EXHAUSTED:too many", "overloaded", "too many"),
        ("status UNAVAILABLE:Exceeds maximum queue size", "overloaded", "Exceeds maximum queue size"),
        ("status UNAVAILABLE:Socket closed", "server_gone", "127.0.0.1"),
        ("status INTERNAL:Stub process 'x' is not healthy.", "model_not_ready", "Stub process 'x' is not healthy."),
        ("status INVALID_ARGUMENT:too long [prompt_too_long]", "prompt_too_long", "too long"),
        ("status NOT_FOUND:Request for unknown model: 'x' is not found", "model_not_found", "unknown model"),
        ("status UNIMPLEMENTED:Method not found!", "unsupported_deployment", "KServe"),
        ("status DEADLINE_EXCEEDED:too late", "deadline_exceeded", "too late"),
        ("status CANCELLED:somebody did", "cancelled", "somebody did"),
    ],
)
def test_a_failure_is_typed(way: TransportVariant, address: str, model: str, code: str, sentence: str) -> None:
    with way.to(address) as caller, raises(InflightError, code, naming=sentence):
        caller.texts(request(model))


@both_grpc
def test_an_error_is_read_to_its_end_for_a_second_and_no_longer(way: TransportVariant) -> None:
    """Triton keeps for good what belongs to a call that is cancelled between its error and its end."""
    with scripted_server.serving(script) as (server, where), way.to(where) as caller:
        assert failure(lambda: caller.texts(request("refusing_slowly"))) == ("overloaded", "no room")
        assert server.requests[0].parameters["there"].bool_param
        begun = time.monotonic()
        assert failure(lambda: caller.texts(request("refusing_and_stuck"))) == ("overloaded", "no room")
        assert 0.9 <= time.monotonic() - begun < SOON


@both_grpc
def test_headers_go_with_every_call_and_a_calls_own_win(way: TransportVariant, address: str) -> None:
    with way.to(address, headers={"authorization": "mine", "x-tenant": "all"}) as caller:
        assert caller.texts(request("echo")) == ["mine all"]
        assert caller.texts(request("echo", headers={"x-tenant": "one"})) == ["mine one"]


@both_grpc
def test_nobody_there_is_unreachable(way: TransportVariant) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{reserved.getsockname()[1]}"
        with nothing_left(), way.to(where) as caller:
            for asked in (lambda: caller.texts(request()), lambda: caller.ask("live", NEVER)):
                code, sentence = failure(asked)
                assert code == "server_unreachable"
                assert f"no server answers at {where}" in sentence


@both_grpc
def test_a_name_that_leads_nowhere_is_told_by_the_address(way: TransportVariant) -> None:
    with way.to("nobody.invalid:1") as caller, pytest.raises(InflightError) as got:
        caller.ask("live", Deadline(SOON))
    # As the resolver answers: without a name server it can't know whether there is such a host.
    assert got.value.code in ("host_not_found", "server_unreachable", "deadline_exceeded")
    assert got.value.code == "deadline_exceeded" or "nobody.invalid:1" in str(got.value)


@both_grpc
def test_a_server_of_another_protocol_is_no_grpc_server(way: TransportVariant) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as pages, ThreadPoolExecutor(1) as pool:
        pool.submit(pages.serve_forever, 0.01)
        where = f"127.0.0.1:{pages.server_port}"
        with way.to(where) as caller:
            code, sentence = failure(lambda: caller.texts(request(), Deadline(SOON)))
        pages.shutdown()
    said = f"the peer at {where} is not a Triton server (it does not speak gRPC); check the address"
    assert (code, sentence) == ("unsupported_deployment", said)


@both_grpc
def test_who_accepts_and_never_answers_does_not_outlast_the_deadline(way: TransportVariant) -> None:
    mute = socket.create_server(("127.0.0.1", 0))
    with mute, way.to(f"127.0.0.1:{mute.getsockname()[1]}") as caller:
        first = Deadline(0.3, "the first token")
        assert failure(lambda: caller.texts(request(), NEVER, first)) == (first.error().code, str(first.error()))
        assert failure(lambda: caller.ask("ready", Deadline(0.3)))[0] == "deadline_exceeded"


@both_grpc
def test_a_server_that_comes_back_is_found_again_at_once(way: TransportVariant) -> None:
    with contextlib.ExitStack() as first:
        where = first.enter_context(serving_at(script))
        with nothing_left(), way.to(where) as caller:
            responses = caller.responses(request("stuck"))
            assert next(responses).text("text_output") == "tea"
            first.close()
            assert failure(lambda: next(responses))[0] == "server_gone"
            wait_until(lambda: failure(lambda: caller.texts(request()))[0] == "server_unreachable")
            time.sleep(1)  # in which gRPC tries again less and less often
            with serving_at(script, port=int(where.rpartition(":")[2])):
                wait_until(lambda: _texts_or_nothing(caller), seconds=SOON)


def _texts_or_nothing(caller: TransportCaller) -> list[str | None]:
    try:
        return caller.texts(request())
    except ServerGone:
        return []


@both_grpc
def test_a_closed_transport_says_so(way: TransportVariant, address: str) -> None:
    with way.to(address) as caller:
        assert caller.texts(request())
        caller.close(caller.transport)
        for asked in (lambda: caller.texts(request()), lambda: caller.ask("live", NEVER)):
            with raises(InflightError, "client_closed"):
                asked()
