"""The seeds of a request's choices."""

from __future__ import annotations

import hashlib
import secrets

from inflight_client import Deployment
from inflight_client.sampling import Sampling


def is_reproducible(deployment: Deployment | None) -> bool:
    """Return whether the server gives the same request the same answer (`inflight serve --reproducible`)."""
    return deployment is not None and bool(deployment.served.get("reproducible"))


def choice_seed(prompt: object, sampling: Sampling, choice: int, reproducible: bool) -> int | None:
    """Return the seed of a choice, from 0; those of one request differ.

    Without one in the request it is random; a reproducible server gives the first choice one of its own (None), and the
    others get theirs from the prompt and the sampling parameters.
    """
    if sampling.seed is not None:
        return (sampling.seed + choice) % 2**64
    if not reproducible:
        return secrets.randbits(63)
    content = hashlib.sha256(repr((prompt, sampling)).encode()).digest()
    return (int.from_bytes(content[:8]) + choice) % 2**64 if choice else None
