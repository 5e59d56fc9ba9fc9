"""Clients are asked after while their requests end: many short requests, and the server runs on."""

from __future__ import annotations

from inflight.deploy.repository.configure import DeploymentOptions
from inflight.deploy.server.server import Server
from tests.fixtures.engines import TinyEngine
from tests.fixtures.server import fake_engine
from tests.serving.raw_requests import GrpcConnection

REQUESTS = 1500
AT_ONCE = 60


def test_no_client_is_asked_after_its_last_response(tiny_engine: TinyEngine) -> None:
    # Triton forgets a request with its last response; a question about it afterwards would end the whole server.
    parameters = fake_engine()
    parameters["tensorrt_llm"]["cancellation_check_period_ms"] = "1"
    with Server(tiny_engine("llama"), DeploymentOptions(parameters=parameters)) as server:
        with GrpcConnection(server.grpc_address) as connection:
            for _ in range(REQUESTS // AT_ONCE):
                calls = [connection.tokens([5, 6, 7], 3, end_id=-1) for _ in range(AT_ONCE)]
                assert [call.finish()[-1].error for call in calls] == [None] * AT_ONCE
        assert server.restarts == 0
