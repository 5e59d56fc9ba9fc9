"""A scripted gRPC server's answer to each call."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import grpc

from tests.client.support import scripted_server

SOON = 20.0
"""Seconds in which a busy machine does what takes none."""


def script(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
    """Each model does something else."""
    model = request.model_name
    if model == "silent":
        _wait(context)
    elif model == "stuck":
        yield scripted_server.response("tea")
        _wait(context)
    elif model == "refusing":
        yield scripted_server.error("[request id: r-1] in ensemble 'e', no room [overloaded]")
    elif model == "refusing_and_stuck":
        yield scripted_server.error("no room [overloaded]")
        _wait(context)
    elif model == "refusing_slowly":
        yield scripted_server.error("no room [overloaded]")
        time.sleep(0.3)
        request.parameters["there"].bool_param = context.is_active()
    elif model == "mismatched_response":
        message = scripted_server.response("tea")
        message.infer_response.id = "r-2"
        yield message
    elif model == "echo":
        sent = dict(context.invocation_metadata())
        yield scripted_server.response(f"{sent.get('authorization')} {sent.get('x-tenant')}")
    elif model.startswith("status "):
        name, _, words = model.removeprefix("status ").partition(":")
        context.abort(grpc.StatusCode[name], words)
    else:
        yield from (scripted_server.response(text) for text in ("tea", " and", " cake"))


def _wait(context: grpc.ServicerContext) -> None:
    while context.is_active():
        time.sleep(0.01)
