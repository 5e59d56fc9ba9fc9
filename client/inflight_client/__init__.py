"""The Python client of a model served by inflight, or by TensorRT-LLM's own Triton models.

from inflight_client import Client

with Client("127.0.0.1:8001") as client:
    for delta in client.stream("Tell me about tea.", max_tokens=64):
        print(delta.text, end="", flush=True)
"""

from inflight_client.address import Tls
from inflight_client.aio import AsyncClient
from inflight_client.aio_stream import AsyncStream
from inflight_client.call import CallOptions, Message, Prompt
from inflight_client.client import Client
from inflight_client.errors import (
    ERROR_CODES,
    AnswerDamaged,
    Cancelled,
    ClientClosed,
    DeadlineExceeded,
    ErrorCode,
    InflightError,
    InvalidRequest,
    ModelNotReady,
    Overloaded,
    PermissionDenied,
    ServerGone,
    Unsupported,
)
from inflight_client.results import Delta, Generation, Health, Model, ServerTimings, Timings, Usage
from inflight_client.retry import NO_RETRY, Retry
from inflight_client.sampling import Guide, Sampling
from inflight_client.stream import Stream
from inflight_client.versions import VersionWarning

__all__ = [
    "ERROR_CODES",
    "NO_RETRY",
    "AnswerDamaged",
    "AsyncClient",
    "AsyncStream",
    "CallOptions",
    "Cancelled",
    "Client",
    "ClientClosed",
    "DeadlineExceeded",
    "Delta",
    "ErrorCode",
    "Generation",
    "Guide",
    "Health",
    "InflightError",
    "InvalidRequest",
    "Message",
    "Model",
    "ModelNotReady",
    "Overloaded",
    "PermissionDenied",
    "Prompt",
    "Retry",
    "Sampling",
    "ServerGone",
    "ServerTimings",
    "Stream",
    "Timings",
    "Tls",
    "Unsupported",
    "Usage",
    "VersionWarning",
]
