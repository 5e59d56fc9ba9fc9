"""A name for each request, which all models behind the one that gives it see, whatever its client calls it.

An ensemble hands on the parameter `sequence_id` of a response: the requests that are made of it have that sequence id,
and so have those that are made of their responses. Behind TensorRT-LLM's C++ backend, which hands on nothing itself, it
tells streams apart that have no id, or all the same.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any


def stream_namer(response_class: Any) -> Callable[[], dict[str, Any]]:
    """What makes the further arguments of a response: its name, or nothing where responses have no parameters.

    Those of python models have them from Triton 25.02 on (python_backend 1ea48a6); the ensembles of 2.51 know them from
    other backends already.
    """

    def name() -> dict[str, Any]:
        return {"parameters": {"sequence_id": secrets.randbits(62) + 1}}

    try:
        response_class([], **name())
    except TypeError:
        return dict
    return name
