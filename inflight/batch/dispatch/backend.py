"""The interface of a server that answers rows: a real one behind the client, or a fake."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from inflight_client import InflightError

from inflight.batch.job.rows import RowAnswer, RowRequest


@dataclass(frozen=True)
class ServerLoad:
    """The load that a server reports: running and waiting requests, and its capacity. None: it does not report that."""

    running: int | None = None
    waiting: int | None = None
    max_running: int | None = None


class Backend(Protocol):
    """One server. All methods raise only InflightError."""

    name: str
    """The name for messages: its address."""

    async def send(self, requests: Sequence[RowRequest], request_id: str) -> Sequence[RowAnswer | InflightError]:
        """Send the requests once and together, without retries; return the answer or the error of each.

        What concerns all of them is raised. A cancelled task cancels them on the server. Several requests are of the
        same task, which is not `generate`, and have the same `shared` values.
        """

    async def load(self) -> ServerLoad:
        """Return how busy the server is."""

    async def ready(self) -> bool:
        """Return whether a request would be answered."""

    async def build(self) -> str:
        """Return a fingerprint of the model: the same for the same engine, template and tokenizer."""

    def prioritize(self, priority: int) -> bool:
        """Send requests with this priority from now on; return whether the server has priorities."""

    async def close(self) -> None: ...
