"""The Python client of a model served by inflight, or by TensorRT-LLM's own Triton models.

from inflight_client import Client

with Client("127.0.0.1:8001") as client:
    for delta in client.stream("Tell me about tea.", max_tokens=64):
        print(delta.text, end="", flush=True)
"""

import importlib
from typing import TYPE_CHECKING, Any

from inflight_client._async.client import AsyncClient
from inflight_client._async.stream import AsyncStream
from inflight_client._sync.client import Client
from inflight_client._sync.stream import Stream
from inflight_client.address import Address, Tls
from inflight_client.audio.transcription import Segment, TranscribedBlock, Transcription, Word
from inflight_client.call import CallOptions, Message, Prompt, TokenIds, TokenText
from inflight_client.chat_template import ChatTemplate
from inflight_client.deployments.deployment import Deployment
from inflight_client.deployments.encoder_detection import EncoderDeployment
from inflight_client.deployments.model_config import ModelConfig
from inflight_client.encoder_call import EncoderCallOptions
from inflight_client.encodings import (
    Classification,
    Classifications,
    Embeddings,
    RankedDocument,
    Reranking,
    Translations,
)
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
from inflight_client.result_order import Outcome
from inflight_client.results import Delta, Generation, Health, LogProb, Model, ServerTimings, Timings, Usage
from inflight_client.retry import NO_RETRY, Retry
from inflight_client.sampling import Guide, Sampling
from inflight_client.transport import ModelMetadata, ServerMetadata
from inflight_client.versions import VersionWarning, client_version

_LATE = {
    "AsyncOpenAIServer": "inflight_client._async.openai_server",
    "Metrics": "inflight_client.metrics",
    "OpenAIServerFacts": "inflight_client._openai.server_facts",
}

if TYPE_CHECKING:
    from inflight_client._async.openai_server import AsyncOpenAIServer
    from inflight_client._openai.server_facts import OpenAIServerFacts
    from inflight_client.metrics import Metrics

    __version__: str
else:

    def __getattr__(name: str) -> Any:
        """Return `__version__`, or what imports an HTTP client, on first use."""
        if name == "__version__":
            return client_version()
        if name not in _LATE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_LATE[name]), name)


__all__ = [
    "ERROR_CODES",
    "NO_RETRY",
    "Address",
    "AnswerDamaged",
    "AsyncClient",
    "AsyncOpenAIServer",
    "AsyncStream",
    "CallOptions",
    "Cancelled",
    "ChatTemplate",
    "Classification",
    "Classifications",
    "Client",
    "ClientClosed",
    "DeadlineExceeded",
    "Delta",
    "Deployment",
    "Embeddings",
    "EncoderCallOptions",
    "EncoderDeployment",
    "ErrorCode",
    "Generation",
    "Guide",
    "Health",
    "InflightError",
    "InvalidRequest",
    "LogProb",
    "Message",
    "Metrics",
    "Model",
    "ModelConfig",
    "ModelMetadata",
    "ModelNotReady",
    "OpenAIServerFacts",
    "Outcome",
    "Overloaded",
    "PermissionDenied",
    "Prompt",
    "RankedDocument",
    "Reranking",
    "Retry",
    "Sampling",
    "Segment",
    "ServerGone",
    "ServerMetadata",
    "ServerTimings",
    "Stream",
    "Timings",
    "Tls",
    "TokenIds",
    "TokenText",
    "TranscribedBlock",
    "Transcription",
    "Translations",
    "Unsupported",
    "Usage",
    "VersionWarning",
    "Word",
    "__version__",
]
