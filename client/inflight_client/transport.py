"""The transport interface that gRPC and HTTP share: KServe v2 requests and responses.

A transport maps every failure to an InflightError, returns only what the server sent, and meets its deadlines whatever
the network does. It knows nothing of sampling, retries or deployments.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from inflight_client.deadline import Deadline
from inflight_client.results import Model

if TYPE_CHECKING:
    import numpy
    import numpy.typing

    Array = numpy.typing.NDArray[numpy.generic]


class Tensor(NamedTuple):
    """An input: KServe's name of the type (`BYTES`, `INT32`, ...), the shape and the flat values."""

    datatype: str
    shape: tuple[int, ...]
    values: tuple[Any, ...] | bytes
    """str for BYTES, else int, float or bool; or the little-endian bytes of many numbers."""


@dataclass(frozen=True)
class InferRequest:
    """One request to one model.

    `outputs` are the requested outputs, for the protocol that supports a choice; `parameters` are KServe's request
    parameters; a request to a gateway has a `body` of OpenAI's fields in place of these and of `inputs`. `headers` are
    added to the client's own (lower-case names). `task` is `generate`, whose answers are streamed, or an encoder's:
    `embed`, `rerank`, `classify`, `transcribe`, whose answer is one response.
    """

    model: str
    id: str
    inputs: Mapping[str, Tensor] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    parameters: Mapping[str, str | int | bool] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    task: str = "generate"
    body: Mapping[str, Any] = field(default_factory=dict)


class InferResponse(Protocol):
    """One response; its outputs are decoded on access. All methods return None for a missing output."""

    @property
    def id(self) -> str:
        """The request's id as the server returns it; empty if it does not."""

    @property
    def final(self) -> bool | None:
        """Whether the server marks this as the last response; None if the protocol has no such mark."""

    def text(self, name: str) -> str | None:
        """Return the first string of a BYTES output. Raises InflightError `answer_damaged` unless it is UTF-8."""

    def integer(self, name: str) -> int | None:
        """Return the first number of an integer output."""

    def integers(self, name: str) -> tuple[int, ...] | None:
        """Return all numbers of an integer output."""

    def numbers(self, name: str) -> tuple[float, ...] | None:
        """Return all numbers of a floating-point output."""

    def texts(self, name: str, limit: int | None = None) -> tuple[str, ...] | None:
        """Return all strings of a BYTES output, or the first `limit`."""

    def array(self, name: str) -> Array | None:
        """Return all numbers or booleans of an output in their shape; the array may be read-only."""


@dataclass(frozen=True)
class ModelMetadata:
    """A model's versions and its inputs and outputs by name, each with KServe's type and shape (-1: any size)."""

    name: str
    inputs: Mapping[str, tuple[str, tuple[int, ...]]]
    outputs: Mapping[str, tuple[str, tuple[int, ...]]]
    versions: tuple[str, ...] = ()


@dataclass(frozen=True)
class ServerMetadata:
    """A server's name and version, for instance `triton`, `2.51.0`."""

    name: str
    version: str


class Responses(Iterator[InferResponse], Protocol):
    """The responses to one request; an InflightError from `next` ends the iteration."""

    def close(self) -> None:
        """Cancel the rest of the answer and release the call's resources. May be called twice."""


class AsyncResponses(AsyncIterable[InferResponse], Protocol):
    """The responses to one request, for asyncio; an object is its own iterator."""

    async def __anext__(self) -> InferResponse: ...

    def cancel(self) -> None:
        """Cancel at once, without waiting; safe from a finalizer in the loop's thread."""

    async def close(self) -> None:
        """Cancel the rest of the answer and wait until the call's resources are released."""


class Transport(Protocol):
    """A connection to one server; safe for use by many threads at once."""

    def live(self, deadline: Deadline) -> bool: ...
    def ready(self, deadline: Deadline) -> bool: ...
    def model_ready(self, model: str, deadline: Deadline) -> bool: ...
    def server(self, deadline: Deadline) -> ServerMetadata: ...
    def index(self, deadline: Deadline) -> list[Model]: ...

    def metadata(self, model: str, deadline: Deadline) -> ModelMetadata:
        """Return a model's metadata. Raises InflightError `model_not_found` for an unknown name."""

    def config(self, model: str, deadline: Deadline) -> Mapping[str, Any]:
        """Return the model's configuration as Triton's HTTP endpoint does: protobuf's field names, enums as names."""

    def infer(self, request: InferRequest, whole: Deadline, first: Deadline) -> Responses:
        """Send a request; `first` is the deadline of the first response, `whole` that of the last."""

    def close(self) -> None: ...


class AsyncTransport(Protocol):
    """A connection to one server, for the tasks of one event loop."""

    async def live(self, deadline: Deadline) -> bool: ...
    async def ready(self, deadline: Deadline) -> bool: ...
    async def model_ready(self, model: str, deadline: Deadline) -> bool: ...
    async def server(self, deadline: Deadline) -> ServerMetadata: ...
    async def index(self, deadline: Deadline) -> list[Model]: ...
    async def metadata(self, model: str, deadline: Deadline) -> ModelMetadata: ...
    async def config(self, model: str, deadline: Deadline) -> Mapping[str, Any]: ...
    def infer(self, request: InferRequest, whole: Deadline, first: Deadline) -> AsyncResponses: ...
    async def close(self) -> None: ...
