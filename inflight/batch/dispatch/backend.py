"""Who answers rows, as the pool sees it: a server behind the client, or something that plays one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from inflight_client.results import Generation

from inflight.batch.job.rows import RowRequest


@dataclass(frozen=True)
class ServerLoad:
    """How busy a server says it is: requests that run and wait, its places, and the used part of its KV cache (0 to 1).

    None where it does not tell.
    """

    running: int | None = None
    waiting: int | None = None
    max_running: int | None = None
    kv_cache_usage: float | None = None


class Backend(Protocol):
    """One server. All of it raises InflightError and nothing else."""

    name: str
    """What people are told: its address."""

    async def generate(self, request: RowRequest, request_id: str) -> Generation:
        """Send it once; nothing is tried again here. A cancelled task cancels the request on the server."""

    async def load(self) -> ServerLoad:
        """How busy it is."""

    async def ready(self) -> bool:
        """Whether a request would be answered."""

    async def build(self) -> str:
        """A fingerprint of the model that answers: the same for the same engine, template and tokenizer."""

    async def close(self) -> None: ...
