"""The gRPC transport for blocking code."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import grpc
from grpc._cython.cygrpc import OperationType
from grpc.experimental import ChannelOptions
from tritonclient.grpc import service_pb2

from inflight_client._grpc import channel, fork, messages
from inflight_client._grpc.errors import error_from_status
from inflight_client.address import Address, Tls
from inflight_client.deadline import Deadline
from inflight_client.error_mapping import client_closed, error_from_message, mismatched_response
from inflight_client.errors import InflightError
from inflight_client.results import Model
from inflight_client.transport import InferRequest, InferResponse, ModelMetadata, ServerMetadata


class GrpcTransport:
    """One connection, used by many threads at once; see transport.Transport.

    The calling threads read their responses; no further Python threads are started.
    """

    def __init__(self, address: Address, headers: Mapping[str, str], tls: Tls | None) -> None:
        self._where = address.authority
        self._headers = headers
        self._options = channel.options(address)
        self._credentials = channel.credentials(address, tls)
        self._channels: dict[str, _Channel] = {}
        self._closed = False

    def live(self, deadline: Deadline) -> bool:
        return bool(self._unary("ServerLive", service_pb2.ServerLiveRequest(), deadline).live)

    def ready(self, deadline: Deadline) -> bool:
        return bool(self._unary("ServerReady", service_pb2.ServerReadyRequest(), deadline).ready)

    def model_ready(self, model: str, deadline: Deadline) -> bool:
        try:
            return bool(self._unary("ModelReady", service_pb2.ModelReadyRequest(name=model), deadline).ready)
        except InflightError as error:
            if error.code in ("model_not_found", "model_not_ready"):
                return False
            raise

    def server(self, deadline: Deadline) -> ServerMetadata:
        request = service_pb2.ServerMetadataRequest()
        return messages.server_metadata(self._unary("ServerMetadata", request, deadline))

    def index(self, deadline: Deadline) -> list[Model]:
        request = service_pb2.RepositoryIndexRequest()
        return messages.models(self._unary("RepositoryIndex", request, deadline))

    def metadata(self, model: str, deadline: Deadline) -> ModelMetadata:
        request = service_pb2.ModelMetadataRequest(name=model)
        return messages.model_metadata(self._unary("ModelMetadata", request, deadline))

    def config(self, model: str, deadline: Deadline) -> Mapping[str, Any]:
        request = service_pb2.ModelConfigRequest(name=model)
        return messages.model_config(self._unary("ModelConfig", request, deadline))

    def infer(self, request: InferRequest, whole: Deadline, first: Deadline) -> GrpcResponses:
        message = messages.infer_request(request)
        call = self._call(self._connect().infer, message, whole, request.headers)
        return GrpcResponses(call, request.id, whole, first, self.map_error)

    def close(self) -> None:
        self._closed = True
        wire = self._channels.get("wire")
        if wire is not None and wire.process == os.getpid():
            wire.channel.close()

    def map_error(self, error: grpc.RpcError, deadline: Deadline) -> InflightError:
        """Map the error of a failed call."""
        if self._closed:
            return client_closed()
        return error_from_status(error.code(), error.details() or "", self._where, deadline)

    def _connect(self) -> _Channel:
        """Return the channel; it is created on first use, so that a process may fork before."""
        if self._closed:
            raise client_closed()
        wire = self._channels.get("wire")
        if wire is None:
            fork.channel_opening()
            mine = _Channel(self._where, self._options, self._credentials)
            wire = self._channels.setdefault("wire", mine)  # atomic, as a lock that a fork may inherit would not be
            if wire is not mine:
                mine.channel.close()
            if self._closed:  # by another thread, meanwhile
                wire.channel.close()
                raise client_closed()
        fork.check_process(wire.process)
        return wire

    def _unary(self, method: str, request: Any, deadline: Deadline) -> Any:
        try:
            return self._call(getattr(self._connect().stub, method), request, deadline, {})
        except grpc.RpcError as error:
            raise self.map_error(error, deadline) from None

    def _call(self, method: Callable[..., Any], request: Any, deadline: Deadline, headers: Mapping[str, str]) -> Any:
        if deadline.passed:
            raise deadline.error()
        try:
            return method(request, timeout=deadline.left(), metadata=channel.metadata(self._headers, headers))
        except ValueError:  # closed by another thread, meanwhile
            raise client_closed() from None


class _Channel:
    """A channel, its calls, and the process that created it."""

    def __init__(self, where: str, options: list[tuple[str, int]], credentials: grpc.ChannelCredentials | None) -> None:
        self.process = os.getpid()
        options = [*options, (ChannelOptions.SingleThreadedUnaryStream, 1)]
        self.channel, self.stub, self.infer = channel.connect(grpc, where, options, credentials)


class GrpcResponses(Iterator[InferResponse]):
    """See transport.Responses. One thread at a time reads them; another may close them."""

    def __init__(
        self,
        call: Any,
        request_id: str,
        whole: Deadline,
        first: Deadline,
        failure: Callable[[grpc.RpcError, Deadline], InflightError],
    ) -> None:
        self._call = call
        self._id = request_id
        self._whole = whole
        self._first: Deadline | None = first if first.sooner(whole) is first and first.at is not None else None
        self._map_error = failure
        self._reading = threading.Lock()
        self._interrupted = False
        self._process = os.getpid()

    def __next__(self) -> InferResponse:
        if self._process != os.getpid():
            fork.check_process(self._process)
        with self._reading:
            try:
                message = self._next() if self._first is None else self._next_within(self._first)
                if message.error_message:
                    self._read_to_end()
                    raise error_from_message(message.error_message)
            except (InflightError, StopIteration):
                raise
            except BaseException:  # from a signal handler: Ctrl-C
                self._interrupted = True
                raise
        response = message.infer_response
        if response.id and response.id != self._id:
            raise mismatched_response(self._id, response.id)
        return messages.GrpcInferResponse(response)

    def close(self) -> None:
        if self._process != os.getpid():
            return
        self._call.cancel()
        # gRPC keeps a call and its connection until all of its events are consumed. After a cancel they are there at
        # once, but iterating does not consume them, as the call counts as ended.
        with self._reading:
            if not self._interrupted:
                _drain(self._call)
                return
            # A signal's exception may arrive after gRPC has delivered a message and before it has recorded that. Its
            # record then has an event that never comes, and waiting for it could block this thread.
            rest = threading.Thread(target=self._drain_available, daemon=True)
            rest.start()
            rest.join(channel.END_OF_CALL_TIMEOUT)

    def _drain_available(self) -> None:
        with contextlib.suppress(KeyError):  # from gRPC, for an event that it no longer records
            _drain(self._call, int(OperationType.receive_message))

    def _next(self) -> Any:
        try:
            return next(self._call)
        except grpc.RpcError as error:
            raise self._map_error(error, self._whole) from None

    def _next_within(self, deadline: Deadline) -> Any:
        """Return the first response; a timer cancels the call at the deadline. No thread is left behind."""
        self._first = None
        late = threading.Event()
        with _cancel_after(self._call, deadline.left() or 0.0, late):
            try:
                message = next(self._call, None)
            except grpc.RpcError as error:
                raise (deadline.error() if late.is_set() else self._map_error(error, self._whole)) from None
        if late.is_set():
            raise deadline.error()
        if message is None:
            raise StopIteration
        return message

    def _read_to_end(self) -> None:
        """Read to the end: Triton leaks the state of a call that is cancelled between its error and its end."""
        with (
            _cancel_after(self._call, channel.END_OF_CALL_TIMEOUT, threading.Event()),
            contextlib.suppress(grpc.RpcError),
        ):
            for _ in self._call:
                pass


def _drain(call: Any, *ignored: int) -> None:
    """Consume the remaining events of an ended call; until then gRPC keeps the call and its connection.

    Events of the operations `ignored` are not waited for. These internals of gRPC may change in any version, hence the
    upper bound on grpcio.
    """
    while call._state.due.difference(ignored):
        call._consume_next_event()


@contextlib.contextmanager
def _cancel_after(call: Any, seconds: float, late: threading.Event) -> Iterator[None]:
    """Cancel the call and set `late` unless the block ends in time."""

    def end() -> None:
        late.set()
        call.cancel()

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
