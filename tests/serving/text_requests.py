"""Requests for text to the models that take it."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.serving.raw_requests import GrpcCall, GrpcConnection, request


def ask(
    connection: GrpcConnection,
    prompt: str | bytes,
    max_tokens: int,
    model: str = "tensorrt_llm_bls",
    request_id: str = "",
    **values: Any,
) -> GrpcCall:
    """Send a streamed request, unless the values say otherwise."""
    values = {"text_input": prompt, "max_tokens": max_tokens, "stream": True, **values}
    return connection.send(request(model, values, request_id))


def words(*texts: str) -> Any:
    return np.array([[text.encode() for text in texts]], np.object_)
