"""What the protocols have in common: KServe v2 questions, their answers, and who carries them.

A transport turns all that goes wrong into an InflightError, never hands out more than the server sent, and keeps to the
deadline it is given, whatever the network does. It knows nothing of sampling, retries or deployments.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from inflight_client.deadline import Deadline
from inflight_client.results import Model


class Tensor(NamedTuple):
    """An input: KServe's name of the type (`BYTES`, `INT32`, ...), its shape, its values one after another."""

    datatype: str
    shape: tuple[int, ...]
    values: tuple[Any, ...]
    """str for BYTES, else int, float or bool."""


@dataclass(frozen=True)
class InferRequest:
    """One request to one model.

    `outputs` are the outputs wanted, for the protocol that lets one choose; `parameters` are KServe's request
    parameters; `headers` go with this call beside the client's own (lower-case names).
    """

    model: str
    id: str
    inputs: Mapping[str, Tensor]
    outputs: tuple[str, ...] = ()
    parameters: Mapping[str, str | int | bool] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


class InferResponse(Protocol):
    """One response; its outputs are decoded when asked for. All give None for an output that did not come."""

    @property
    def id(self) -> str:
        """The request's id, as the server gives it back; empty where it doesn't."""

    @property
    def final(self) -> bool | None:
        """Whether the server says that this is the last response; None where the protocol does not tell."""

    def text(self, name: str) -> str | None:
        """The first string of a BYTES output. Raises InflightError `answer_damaged` for what is not UTF-8."""

    def integer(self, name: str) -> int | None:
        """The first number of an integer output."""

    def integers(self, name: str) -> tuple[int, ...] | None:
        """All numbers of an integer output."""

    def numbers(self, name: str) -> tuple[float, ...] | None:
        """All numbers of a floating-point output."""


@dataclass(frozen=True)
class ModelMetadata:
    """A model's inputs and outputs, KServe's type and shape (-1: any) of each by name, and its versions."""

    name: str
    inputs: Mapping[str, tuple[str, tuple[int, ...]]]
    outputs: Mapping[str, tuple[str, tuple[int, ...]]]
    versions: tuple[str, ...] = ()


@dataclass(frozen=True)
class ServerMetadata:
    """What a server says of itself, for instance `triton`, `2.51.0`."""

    name: str
    version: str


class Responses(Iterator[InferResponse], Protocol):
    """The responses to one request; InflightError from `next` ends it."""

    def close(self) -> None:
        """Cancel what is still to come. Twice is fine; afterwards nothing of the call is left in this process."""


class AsyncResponses(AsyncIterable[InferResponse], Protocol):
    """The responses to one request, for asyncio: their own iterator."""

    async def __anext__(self) -> InferResponse: ...

    def cancel(self) -> None:
        """Cancel at once, without waiting; safe from a finalizer in the loop's thread."""

    async def close(self) -> None:
        """Cancel what is still to come, and wait until nothing of the call is left in this process."""


class Transport(Protocol):
    """A connection to one server. Used by many threads at once."""

    def live(self, deadline: Deadline) -> bool: ...
    def ready(self, deadline: Deadline) -> bool: ...
    def model_ready(self, model: str, deadline: Deadline) -> bool: ...
    def server(self, deadline: Deadline) -> ServerMetadata: ...
    def index(self, deadline: Deadline) -> list[Model]: ...

    def metadata(self, model: str, deadline: Deadline) -> ModelMetadata:
        """Raises InflightError `model_not_found` where the server has none of that name."""

    def config(self, model: str, deadline: Deadline) -> Mapping[str, Any]:
        """The model's configuration as Triton's HTTP endpoint gives it: protobuf's own field names, enums as names."""

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
