"""The stand-in for servers with NVIDIA's repositories refuses what Triton refuses, in its words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from inflight_client._grpc.sync_transport import GrpcTransport
from inflight_client._sync.http_transport import HttpTransport
from inflight_client.address import Address
from inflight_client.deadline import Deadline
from inflight_client.errors import InflightError
from inflight_client.transport import InferRequest, Tensor, Transport

from inflight.deploy.server.server import Server
from tests.fixtures.engines import TinyCheckpoint
from tests.standins.kserve import StandInServer
from tests.standins.kserve.repository import text_models

PLAIN = InferRequest(
    "ensemble",
    "mine",
    {"text_input": Tensor("BYTES", (1, 1), ("Tea?",)), "max_tokens": Tensor("INT32", (1, 1), (2,))},
    ("text_output",),
)


def with_input(name: str, tensor: Tensor) -> InferRequest:
    return replace(PLAIN, inputs={**PLAIN.inputs, name: tensor})


WRONG = {
    "unknown input": with_input("tea", Tensor("INT32", (1, 1), (1,))),
    "another's type": with_input("top_k", Tensor("FP32", (1, 1), (1.0,))),
    "no batch": with_input("top_k", Tensor("INT32", (1,), (1,))),
    "too many": with_input("top_k", Tensor("INT32", (1, 2), (1, 2))),
    "unknown output": replace(PLAIN, outputs=("text_output", "tea")),
    "unknown model": replace(PLAIN, model="tea"),
    # That of a model whose required inputs are upstream's: in our text models all are optional to Triton.
    "missing input": InferRequest("postprocessing", "mine", {"SEQUENCE_LENGTH": Tensor("INT32", (1, 1), (1,))}, ()),
}


@pytest.fixture(scope="module")
def stand_in(tiny_checkpoint: TinyCheckpoint) -> Iterator[StandInServer]:
    with StandInServer(text_models(), tiny_checkpoint("llama")) as server:
        yield server


def refusal(transport: Transport, request: InferRequest) -> tuple[str, str]:
    with closing(transport), pytest.raises(InflightError) as raised:
        for _ in transport.infer(request, Deadline(60), Deadline(60)):
            pass
    # How many inputs a model has is another matter.
    return re.sub(r"between \d+ and \d+", "between", str(raised.value)), raised.value.code


@pytest.mark.parametrize("request_", WRONG.values(), ids=WRONG)
def test_what_does_not_fit_is_refused_as_triton_does(
    paced_server: Server, stand_in: StandInServer, request_: InferRequest
) -> None:
    said, expected = (
        refusal(GrpcTransport(Address.parse(server.grpc_address), {}, None), request_)
        for server in (stand_in, paced_server)
    )
    assert said == expected


@pytest.mark.parametrize("name", ["unknown model", "missing input"])
def test_so_it_does_over_http(paced_server: Server, stand_in: StandInServer, name: str) -> None:
    said, expected = (
        refusal(HttpTransport(Address.parse(address), {}, None), WRONG[name])
        for address in (stand_in.http_address, f"http://{paced_server.http_address}")
    )
    here = stand_in.http_address.removeprefix("http://")
    assert (said[0].replace(here, paced_server.http_address), said[1]) == expected
