"""A malformed request: what goes over the wire, and what may come of it."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class HttpCase:
    """A request line with headers and a body, as they go over the wire.

    `kind` is what is wrong with it, and `others` the outcomes beside a refusal that are known to come of it: "served"
    where bytes changed at random may mean something by chance, or "silent" where Triton says nothing. Where it is not
    `whole`, its headers promise another body than comes, and a server may wait for the rest.
    """

    kind: str
    name: str
    raw: bytes
    others: tuple[str, ...] = ()
    whole: bool = True


@dataclass(frozen=True)
class GrpcCase:
    """A serialized ModelInferRequest, or other bytes, for a stream or a single call; otherwise as `HttpCase`."""

    kind: str
    name: str
    raw: bytes
    stream: bool
    others: tuple[str, ...] = ()


Case = HttpCase | GrpcCase


def flipped(source: random.Random, raw: bytes) -> bytes:
    """With some bytes changed."""
    changed = bytearray(raw)
    for _ in range(source.choice([1, 3, 20]) if changed else 0):
        changed[source.randrange(len(changed))] = source.randrange(256)
    return bytes(changed)
