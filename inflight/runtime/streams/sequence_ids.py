"""A name for each request, which all models behind the one that gives it see, whatever its client calls it.

An ensemble hands on the parameter `sequence_id` of a response: the requests that are made of it have that sequence id,
and so have those that are made of their responses. Behind TensorRT-LLM's C++ backend, which hands on nothing itself, it
tells streams apart that have no id, or all the same. It also says which answers come whole: nothing follows on them.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

_BITS = 61
_UNARY = 2**_BITS
"""Set in the names of requests whose answers come whole."""


def sequence_id_factory(response_class: Any) -> Callable[[bool], dict[str, Any]]:
    """What makes the further arguments of a response, for a request that streams or not: its name.

    Nothing where responses have no parameters. Those of python models have them from Triton 25.02 on (python_backend
    1ea48a6); the ensembles of 2.51 know them from other backends already.
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
    """Whether the request of that name gets its answer in one piece; clients may have names of their own, as texts."""
    return isinstance(name, int) and bool(name & _UNARY)
