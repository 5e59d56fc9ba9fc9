"""A malformed request: what goes over the wire, and what may come of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HttpCase:
    """A body for a path, to be posted.

    `kind` is what is wrong with it, and `others` the outcomes beside a refusal that are known to come of it: "served"
    where bytes changed at random may mean something by chance, or "silent" where Triton says nothing.
    """

    kind: str
    name: str
    path: str
    body: bytes
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class GrpcCase:
    """A serialized ModelInferRequest, or other bytes, for a stream or a single call; otherwise as `HttpCase`."""

    kind: str
    name: str
    raw: bytes
    stream: bool
    others: tuple[str, ...] = ()


Case = HttpCase | GrpcCase
