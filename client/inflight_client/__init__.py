"""The Python client of a model served by inflight.

from inflight_client import Client

with Client("127.0.0.1:8001") as client:
    for delta in client.stream("Tell me about tea.", max_tokens=64):
        print(delta.text, end="", flush=True)
"""

from inflight_client.aio import AsyncClient
from inflight_client.client import Client
from inflight_client.errors import ERROR_CODES, ErrorCode, InflightError
from inflight_client.results import Delta, Generation
from inflight_client.sampling import Sampling

__all__ = [
    "ERROR_CODES",
    "AsyncClient",
    "Client",
    "Delta",
    "ErrorCode",
    "Generation",
    "InflightError",
    "Sampling",
]
