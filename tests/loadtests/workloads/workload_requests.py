"""Requests that a workload makes."""

from __future__ import annotations

from loadtests.workloads.interface import RequestSpec, Session


def asked(session: Session | None, answer: str = "yes") -> list[RequestSpec]:
    """All that a session asks, when each answer is the same."""
    assert session is not None
    asks = session.requests()
    found: list[RequestSpec] = []
    try:
        request = next(asks)
        while True:
            assert isinstance(request, RequestSpec)
            found.append(request)
            request = asks.send(answer)
    except StopIteration:
        return found
