"""The numbers of LoRA adapters that a server loads while it runs."""

from __future__ import annotations

import zlib

FIRST_ID = 1 << 32
"""Smaller ones are adapters with which the server was started, counted from 1."""


def adapter_id(directory: str) -> int:
    """Return the `lora_task_id` of an adapter by the name of its directory in the server's `--lora-dir`.

    >>> adapter_id("formal")
    7748381321
    """
    return FIRST_ID + zlib.crc32(directory.encode())
