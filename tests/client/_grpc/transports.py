"""Scripted servers of gRPC, and requests to them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from inflight_client import InflightError
from inflight_client.transport import InferRequest, Tensor
from tritonclient.grpc import service_pb2_grpc

from tests.client.support.scripted_server import Script, ScriptedServer

THREADS = 16
"""Of a scripted server: as many calls it takes at once."""


@contextmanager
def serving_at(script: Script, port: int = 0, credentials: grpc.ServerCredentials | None = None) -> Iterator[str]:
    """A scripted server at a given port, perhaps behind TLS; gives its address."""
    server = grpc.server(pool := ThreadPoolExecutor(THREADS))
    all_here = threading.Barrier(
        THREADS
    )  # so that none is started later, which would look like one that is left behind
    list(pool.map(lambda _: all_here.wait(), range(THREADS)))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(ScriptedServer(script), server)
    # Of IPv4 alone: a port that is free there may be another server's on ::1, and the other way round.
    where = f"127.0.0.1:{port}"
    port = server.add_secure_port(where, credentials) if credentials else server.add_insecure_port(where)
    server.start()
    try:
        yield f"{'localhost' if credentials else '127.0.0.1'}:{port}"
    finally:
        server.stop(grace=None).wait()


def request(model: str = "ensemble", max_tokens: int = 3, **more: Any) -> InferRequest:
    """A text to be continued."""
    text = {"text_input": Tensor("BYTES", (1, 1), ("tea",)), "max_tokens": Tensor("INT32", (1, 1), (max_tokens,))}
    return InferRequest(model, "r-1", {**text, "stream": Tensor("BOOL", (1, 1), (True,))}, **more)


def failure(ask: Callable[[], object]) -> tuple[str, str]:
    """The code and the sentence that asking ends in. (The error itself holds the frames, and these the channel.)"""
    try:
        ask()
    except InflightError as error:
        return error.code, str(error)
    pytest.fail("it did not fail")
