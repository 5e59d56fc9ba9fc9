"""Malformed requests by the thousand, each drawn from a seed and its number: what to send where, over HTTP and gRPC.

Each is a valid request with one or several things broken, so that it gets past the first checks; values are tiny or
absurd, never in between, so that nothing takes long.
"""

from __future__ import annotations

import random

from tests.serving.malformed.case import Case
from tests.serving.malformed.grpc_cases import grpc_case
from tests.serving.malformed.http_cases import http_case
from tests.serving.malformed.values import MODELS


def case(number: int, seed: int = 0) -> Case:
    """The malformed request of that number; the same each time."""
    source = random.Random(f"{seed}-{number}")
    model = source.choice(MODELS)
    return http_case(source, model) if source.random() < 0.5 else grpc_case(source, model)
