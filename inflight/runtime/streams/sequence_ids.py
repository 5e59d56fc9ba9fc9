"""A unique sequence id for each request, which all later models of an ensemble receive, independent of the client's id.

An ensemble passes on the parameter `sequence_id` of a response: the requests made from it have that sequence id, and so
have the requests made from their responses. With TensorRT-LLM's C++ backend, which passes on nothing itself, it
distinguishes streams without an id or with the same id. It also marks unary answers, after which nothing follows.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

_BITS = 61
_UNARY = 2**_BITS
"""Set in the sequence ids of requests with unary answers."""


def sequence_id_factory(response_class: Any) -> Callable[[bool], dict[str, Any]]:
    """Return a function that makes further arguments of a response: the sequence id of a streaming or unary request.

    The arguments are empty if responses have no parameters. Those of python models have them from Triton 25.02 on
    (python_backend 1ea48a6); the ensembles of 2.51 support them already, from other backends.
    """

    def name(streams: bool) -> dict[str, Any]:
        number = secrets.randbits(_BITS) or 1
        return {"parameters": {"sequence_id": number if streams else number | _UNARY}}

    try:
        response_class([], **name(True))
    except TypeError:
        return lambda streams: {}
    return name


def is_unary(name: Any) -> bool:
    """Return whether the request of that sequence id gets a unary answer; clients may set ids of their own, as text."""
    return isinstance(name, int) and bool(name & _UNARY)
