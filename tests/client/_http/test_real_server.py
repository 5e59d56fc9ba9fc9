"""HTTP's transports at the real server: Triton's own ways with the generate extension."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest
from inflight_client._grpc.sync_transport import GrpcTransport
from inflight_client.address import Address
from inflight_client.deadline import Deadline
from inflight_client.transport import InferRequest, InferResponse, Tensor

from inflight.deploy.server.server import Server
from tests.client._http.transports import request
from tests.client.support.leak_checks import nothing_left
from tests.client.support.transports import TransportCaller, TransportVariant, both_http

_MODELS = pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])


@pytest.fixture(params=[TransportVariant("http", False), TransportVariant("http", True)], ids=str)
def caller(request: pytest.FixtureRequest, server: Server) -> Iterator[TransportCaller]:
    """Nothing is left behind, on the server too."""
    with nothing_left(server), request.param.to(f"http://{server.http_address}") as caller:
        yield caller


def _soon() -> Deadline:
    return Deadline(120)


def _asking(model: str, tokens: int = 12, stream: bool = True, **inputs: Tensor) -> InferRequest:
    plain = {
        "max_tokens": Tensor("INT32", (1, 1), (tokens,)),
        "stream": Tensor("BOOL", (1, 1), (stream,)),
        "exclude_input_in_output": Tensor("BOOL", (1, 1), (True,)),
    }
    return replace(request(f"on {model}", **{**plain, **inputs}), model=model)


def _gathered(responses: Iterable[InferResponse]) -> tuple[str, list[float], int | None]:
    """Text, log probabilities and tokens of an answer, however it is cut."""
    text, tokens = "", None
    log_probs: list[float] = []
    for response in responses:
        text += response.text("text_output") or ""
        log_probs += response.numbers("output_log_probs") or ()
        tokens = response.integer("num_output_tokens") or tokens
    return text, log_probs, tokens


@_MODELS
class TestAnswers:
    def test_values_are_read_as_gRPC_has_them(self, caller: TransportCaller, server: Server, model: str) -> None:  # noqa: N802
        asked = _asking(
            model,
            temperature=Tensor("FP32", (1, 1), (0.7,)),
            seed=Tensor("UINT64", (1, 1), (2**64 - 1,)),
            top_p=Tensor("FP32", (1, 1), (0.95,)),
            stop_words=Tensor("BYTES", (1, 2), ("☕ never", "never\0too")),
            return_log_probs=Tensor("BOOL", (1, 1), (True,)),
        )
        grpc = GrpcTransport(Address.parse(server.grpc_address), {}, None)
        responses = grpc.infer(asked, _soon(), _soon())
        try:
            expected = _gathered(responses)
        finally:
            responses.close()
            grpc.close()
        assert _gathered(caller.responses(asked, _soon())) == expected


@both_http
def test_both_protocols_tell_the_same(way: TransportVariant, server: Server) -> None:
    grpc = GrpcTransport(Address.parse(server.grpc_address), {}, None)
    try:
        with way.to(f"http://{server.http_address}") as http:
            assert http.ask("server", _soon()) == grpc.server(_soon())
            assert http.ask("metadata", "ensemble", _soon()) == grpc.metadata("ensemble", _soon())
            assert http.ask("config", "tensorrt_llm", _soon()) == grpc.config("tensorrt_llm", _soon())
    finally:
        grpc.close()


@both_http
def test_a_server_of_one_response_is_answered_by_the_same_endpoint(way: TransportVariant, server: Server) -> None:
    """Here preprocessing, which does not stream whatever it is asked; Triton sends its one response as an event."""
    inputs = {"QUERY": Tensor("BYTES", (1, 1), ("tea",)), "REQUEST_OUTPUT_LEN": Tensor("INT32", (1, 1), (5,))}
    with way.to(f"http://{server.http_address}") as caller:
        (response,) = caller.responses(InferRequest("preprocessing", "one", inputs), _soon())
    ids = response.integers("INPUT_ID")
    assert ids
    assert response.integer("REQUEST_INPUT_LEN") == len(ids)
