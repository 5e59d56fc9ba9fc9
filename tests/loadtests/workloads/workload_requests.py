"""Requests that a workload makes."""

from __future__ import annotations

from typing import Any

from loadtests.workloads.interface import Session


def asked(session: Session | None, answer: str = "yes") -> list[Any]:
    """All that a session asks, of its task's type, when each answer is the same."""
    assert session is not None
    asks = session.requests()
    found: list[Any] = [next(asks)]
    while True:
        try:
            found.append(asks.send(answer))
        except StopIteration:
            return found
