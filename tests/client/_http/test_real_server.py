"""HTTP's transports at the real server: Triton's own ways with the generate extension."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest
from inflight_client._grpc.sync_transport import GrpcTransport
from inflight_client.address import Address
from inflight_client.deadline import Deadline
from inflight_client.errors import InflightError
from inflight_client.transport import InferRequest, InferResponse, Tensor

from inflight.deploy.server.server import Server
from tests.client._http.transports import request
from tests.client.support.leak_checks import nothing_left
from tests.client.support.transports import TransportCaller, TransportVariant, both_http
from tests.fixtures.errors import raises

_MODELS = pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])


@pytest.fixture(params=[TransportVariant("http", False), TransportVariant("http", True)], ids=str)
def caller(request: pytest.FixtureRequest, server: Server) -> Iterator[TransportCaller]:
    """Nothing is left behind, on the server too."""
    with nothing_left(server), request.param.to(f"http://{server.http_address}") as caller:
        yield caller


@pytest.fixture(params=[TransportVariant("http", False), TransportVariant("http", True)], ids=str)
def paced_caller(request: pytest.FixtureRequest, paced_server: Server) -> Iterator[TransportCaller]:
    """One of a server whose answers take as long as they have tokens, however fast the machine is."""
    with nothing_left(paced_server), request.param.to(f"http://{paced_server.http_address}") as caller:
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


def _text(caller: TransportCaller, asked: InferRequest) -> str:
    return "".join(text or "" for text in caller.texts(asked, _soon()))


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
    def test_a_stream_is_the_whole_answer_in_parts(self, caller: TransportCaller, model: str) -> None:
        parts = caller.texts(_asking(model), _soon())
        assert 1 < len(parts) <= 12  # tokens that wait for their turn in tensorrt_llm_bls go on together
        assert caller.texts(_asking(model, stream=False), _soon()) == ["".join(map(str, parts))]

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

    @pytest.mark.parametrize("stream", [True, False])
    def test_a_refusal_has_its_words_and_code(self, caller: TransportCaller, model: str, stream: bool) -> None:
        with raises(InflightError, "invalid_parameter", naming="max_tokens") as caught:
            _text(caller, _asking(model, tokens=0, stream=stream))
        assert "[" not in str(caught.value)  # where the server's sentence has the code

    def test_leaving_early_and_coming_late_end_on_the_server(self, paced_caller: TransportCaller, model: str) -> None:
        responses = paced_caller.responses(_asking(model, tokens=1500), _soon())
        assert next(responses).id == f"on {model}"
        responses.close()
        try:
            found: object = paced_caller.texts(_asking(model, tokens=1500), Deadline(0.05))
        except InflightError as error:
            found = error.code
        assert found == "deadline_exceeded"


class TestQuestions:
    def test_health(self, caller: TransportCaller) -> None:
        assert caller.ask("live", _soon())
        assert caller.ask("ready", _soon())
        assert caller.ask("model_ready", "ensemble", _soon())
        assert not caller.ask("model_ready", "nobody", _soon())

    @pytest.mark.parametrize("method", ["metadata", "config"])
    def test_a_model_that_is_not_there(self, caller: TransportCaller, method: str) -> None:
        with raises(InflightError, "model_not_found", naming="nobody"):
            caller.ask(method, "nobody", _soon())

    def test_the_list_of_models_is_for_who_may_see_it(self, caller: TransportCaller) -> None:
        with raises(InflightError, "permission_denied"):
            caller.ask("index", _soon())


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
