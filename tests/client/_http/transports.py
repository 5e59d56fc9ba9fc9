"""Requests over HTTP."""

from __future__ import annotations

from inflight_client.transport import InferRequest, Tensor


def request(id: str = "r-1", **inputs: Tensor) -> InferRequest:
    """To the ensemble, for three tokens by default."""
    text = {"text_input": Tensor("BYTES", (1, 1), ("tea",)), "max_tokens": Tensor("INT32", (1, 1), (3,))}
    return InferRequest("ensemble", id, {**text, "stream": Tensor("BOOL", (1, 1), (True,)), **inputs})
