"""What batches know of the served models."""

from __future__ import annotations

from typing import NamedTuple


class BatchModel(NamedTuple):
    """The servers that have a model for applications, and the number of the LoRA adapter that it is there."""

    servers: tuple[str, ...]
    adapter: int | None = None
