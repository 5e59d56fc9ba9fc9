"""gRPC for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import os
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from inflight_client import grpc_channel, grpc_fork, grpc_messages
from inflight_client.address import Address, Tls
from inflight_client.deadline import Deadline
from inflight_client.errors import InflightError
from inflight_client.grpc_errors import error_from_status
from inflight_client.results import Model
from inflight_client.server_words import closed, error_from_words, foreign_answer
from inflight_client.transport import InferRequest, InferResponse, ModelMetadata, ServerMetadata


class GrpcAioTransport:
    """One connection, for the tasks of the event loop that first uses it; see transport.AsyncTransport."""

    def __init__(self, address: Address, headers: Mapping[str, str], tls: Tls | None) -> None:
        self._where = address.authority
        self._headers = headers
        self._options = grpc_channel.options(address)
        self._credentials = grpc_channel.credentials(address, tls)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._channel: grpc.aio.Channel | None = None
        self._open_responses: weakref.WeakSet[GrpcAioResponses] = weakref.WeakSet()
        self._closed = False

    async def live(self, deadline: Deadline) -> bool:
        return bool((await self._ask("ServerLive", service_pb2.ServerLiveRequest(), deadline)).live)

    async def ready(self, deadline: Deadline) -> bool:
        return bool((await self._ask("ServerReady", service_pb2.ServerReadyRequest(), deadline)).ready)

    async def model_ready(self, model: str, deadline: Deadline) -> bool:
        try:
            return bool((await self._ask("ModelReady", service_pb2.ModelReadyRequest(name=model), deadline)).ready)
        except InflightError as error:
            if error.code in ("model_not_found", "model_not_ready"):
                return False
            raise

    async def server(self, deadline: Deadline) -> ServerMetadata:
        answer = await self._ask("ServerMetadata", service_pb2.ServerMetadataRequest(), deadline)
        return grpc_messages.server_metadata(answer)

    async def index(self, deadline: Deadline) -> list[Model]:
        return grpc_messages.models(await self._ask("RepositoryIndex", service_pb2.RepositoryIndexRequest(), deadline))

    async def metadata(self, model: str, deadline: Deadline) -> ModelMetadata:
        answer = await self._ask("ModelMetadata", service_pb2.ModelMetadataRequest(name=model), deadline)
        return grpc_messages.model_metadata(answer)

    async def config(self, model: str, deadline: Deadline) -> Mapping[str, Any]:
        answer = await self._ask("ModelConfig", service_pb2.ModelConfigRequest(name=model), deadline)
        return grpc_messages.model_config(answer)

    def infer(self, request: InferRequest, whole: Deadline, first: Deadline) -> GrpcAioResponses:
        self._open()
        if whole.passed:
            raise whole.error()
        call = self._infer(
            grpc_messages.infer_request(request),
            timeout=whole.left(),
            metadata=grpc_channel.metadata(self._headers, request.headers),
        )
        responses = GrpcAioResponses(call, request.id, whole, first, self.error)
        self._open_responses.add(responses)
        return responses

    async def close(self) -> None:
        """End all calls; gRPC's thread for asyncio ends too, unless something else in the process uses it."""
        self._closed = True
        if self._loop is not None and self._process != os.getpid():
            return  # the parent's
        for responses in tuple(self._open_responses):
            await responses.close()
        channel, self._channel = self._channel, None
        if channel is not None:
            del self._stub, self._infer  # gRPC's thread lives as long as something refers to the channel
            await channel.close()
            grpc_fork.closing(self)

    def error(self, error: grpc.aio.AioRpcError, deadline: Deadline) -> InflightError:
        """What a call of this connection failed of."""
        if self._closed:
            return closed()
        return error_from_status(error.code(), error.details() or "", self._where, deadline)

    def _open(self) -> None:
        """Connect this loop, once."""
        if self._closed:
            raise closed()
        loop = asyncio.get_running_loop()
        if self._loop is None:
            grpc_fork.opening(self)
            self._loop, self._process = loop, os.getpid()
            self._channel = (
                grpc.aio.insecure_channel(self._where, self._options)
                if self._credentials is None
                else grpc.aio.secure_channel(self._where, self._credentials, self._options)
            )
            self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
            self._infer = self._channel.unary_stream(
                grpc_channel.STREAM_METHOD,
                request_serializer=service_pb2.ModelInferRequest.SerializeToString,
                response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
            )
            return
        grpc_fork.check(self._process)
        if self._loop is not loop:
            raise InflightError(
                "the client belongs to another event loop; make one in each loop that uses one", "client_closed"
            )

    async def _ask(self, method: str, request: Any, deadline: Deadline) -> Any:
        self._open()
        if deadline.passed:
            raise deadline.error()
        try:
            return await getattr(self._stub, method)(
                request, timeout=deadline.left(), metadata=grpc_channel.metadata(self._headers, {})
            )
        except grpc.aio.AioRpcError as error:
            raise self.error(error, deadline) from None
        except asyncio.CancelledError:
            if self._closed and not _is_being_cancelled():
                raise closed() from None
            raise


class GrpcAioResponses:
    """See transport.AsyncResponses. One task reads them at a time; another one may close them."""

    def __init__(
        self,
        call: Any,
        request_id: str,
        whole: Deadline,
        first: Deadline,
        failure: Callable[[grpc.aio.AioRpcError, Deadline], InflightError],
    ) -> None:
        self._call: Any = call
        self._id = request_id
        self._whole = whole
        self._first: Deadline | None = first if first.sooner(whole) is first and first.at is not None else None
        self._failure = failure

    def __aiter__(self) -> GrpcAioResponses:
        return self

    async def __anext__(self) -> InferResponse:
        call = self._call
        if call is None:
            raise self._failure(_cancelled(), self._whole)
        try:
            message = await (call.read() if self._first is None else self._read_before(call, self._first))
        except grpc.aio.AioRpcError as error:
            raise self._failure(error, self._whole) from None
        except asyncio.CancelledError:
            if _is_being_cancelled():
                raise
            # Not this task but the call was cancelled: by `cancel` or `close`, or by the end of the whole connection.
            raise self._failure(_cancelled(), self._whole) from None
        if message is grpc.aio.EOF:
            raise StopAsyncIteration
        if message is None:  # what gRPC gives for bytes that are no message
            raise InflightError("a part of the answer can't be read; send the request again", "answer_damaged")
        if message.error_message:
            await self._read_on(call)
            raise error_from_words(message.error_message)
        response = message.infer_response
        if response.id and response.id != self._id:
            raise foreign_answer(self._id, response.id)
        return grpc_messages.GrpcInferResponse(response)

    def cancel(self) -> None:
        if self._call is not None:
            self._call.cancel()

    async def close(self) -> None:
        call, self._call = self._call, None
        if call is None or call.done():
            return
        # Of a call that is cancelled gRPC keeps a task until the server's side is closed too; so does a pending read.
        pending = asyncio.gather(call.read(), return_exceptions=True)
        await asyncio.sleep(0)
        call.cancel()
        await pending

    async def _read_before(self, call: Any, deadline: Deadline) -> Any:
        """The first response, or the deadline's error; the call is cancelled with the reading."""
        self._first = None
        try:
            async with asyncio.timeout(deadline.left()):
                return await call.read()
        except TimeoutError:
            raise deadline.error() from None

    async def _read_on(self, call: Any) -> None:
        """Triton keeps for good what belongs to a call that is cancelled between its error and its end."""
        with contextlib.suppress(TimeoutError, grpc.aio.AioRpcError):
            async with asyncio.timeout(grpc_channel.END_SECONDS):
                while await call.read() is not grpc.aio.EOF:
                    pass


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _cancelled() -> grpc.aio.AioRpcError:
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(grpc.StatusCode.CANCELLED, nothing, nothing, "the call was cancelled")
