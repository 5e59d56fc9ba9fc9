"""The stand-in over HTTP: KServe v2's questions and Triton's `generate` and `generate_stream`."""

from __future__ import annotations

import json
import re
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import prod
from typing import TYPE_CHECKING, Any

from tests.standins.kserve.repository import ModelSpec
from tests.standins.kserve.requests import InputTensor, ModelRequest, RefusedError
from tests.standins.kserve.responses import ModelResponse

if TYPE_CHECKING:
    from tests.standins.kserve.server import StandInServer

_STATUS = {
    "INVALID_ARG": 400,
    "CANCELLED": 400,
    "NOT_FOUND": 404,
    "INTERNAL": 500,
    "UNSUPPORTED": 501,
    "RESTRICTED": 403,
}
_MODEL = re.compile(r"/v2/models/([^/]+)(?:/versions/\d+)?(?:/(\w+))?")
_NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number"
    " of responses"
)
_WATCH_SECONDS = 0.05


class HttpFrontend:
    """Listens until it is closed; each connection has a thread."""

    def __init__(self, server: StandInServer) -> None:
        self._http = _Server(("127.0.0.1", 0), _Handler)
        self._http.stand_in = server
        self.address = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    stand_in: StandInServer


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *arguments: Any) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        self._answer(self._look)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", "0")))
        found = _MODEL.fullmatch(self.path)
        if found and found[2] in ("generate", "generate_stream"):
            self._generate(found[1], json.loads(body or b"{}"), streams=found[2] == "generate_stream")
        else:
            self._answer(self._index)

    def _answer(self, method: Any) -> None:
        try:
            self._send(200, method())
        except RefusedError as error:
            self._refuse(error)

    def _look(self) -> Any:
        server = self.server.stand_in
        if self.path in ("/v2/health/live", "/v2/health/ready"):
            return None
        if self.path == "/v2":
            return {"name": "triton", "version": "2.51.0", "extensions": ["generate", "model_repository"]}
        found = _MODEL.fullmatch(self.path)
        if found is None:
            raise RefusedError("Not Found", "NOT_FOUND")
        model = server.model(found[1])
        if found[2] == "ready":
            return None
        if found[2] == "config":
            server.check_open("model-config")
            return model.config()
        return _metadata(model)

    def _index(self) -> Any:
        if self.path != "/v2/repository/index":
            raise RefusedError("Not Found", "NOT_FOUND")
        self.server.stand_in.check_open("model-repository")
        return [{"name": name, "version": "1", "state": "READY"} for name in self.server.stand_in.models]

    def _generate(self, name: str, body: dict[str, Any], streams: bool) -> None:
        gone = threading.Event()
        try:
            request = _request(self.server.stand_in.model(name), body, dict(self.headers.items()), gone)
            with _watched(self.connection, gone):
                responses = (each for each in self.server.stand_in.infer(request) if each.outputs_sent)
                if streams:
                    self._stream(request, responses)
                    return
                all_of_them = list(responses)
            if gone.is_set():
                self.close_connection = True
            elif len(all_of_them) != 1:
                raise RefusedError(_NOT_ONE, "INTERNAL")
            else:
                self._send(200, _body(request, all_of_them[0]))
        except RefusedError as error:
            self._refuse(error)
        except OSError:
            gone.set()
            self.close_connection = True

    def _stream(self, request: ModelRequest, responses: Iterator[ModelResponse]) -> None:
        """Server-sent events in chunks; the first response decides the status."""
        first = next(responses, None)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        try:
            while first is not None:
                self._event(_body(request, first))
                first = next(responses, None)
        except RefusedError as error:
            self._event({"error": str(error)})
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, content: Any) -> None:
        event = b"data: " + json.dumps(content).encode() + b"\n\n"
        self.wfile.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")

    def _refuse(self, error: RefusedError) -> None:
        words = "This API is restricted, expecting header 'key'" if error.code == "RESTRICTED" else str(error)
        self._send(_STATUS[error.code], {"error": words})

    def _send(self, status: int, content: Any) -> None:
        body = b"" if content is None else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def _watched(connection: socket.socket, gone: threading.Event) -> Iterator[None]:
    """Meanwhile a client that closes its connection is noticed."""
    done = threading.Event()

    def watch() -> None:
        while not done.is_set() and not gone.is_set():
            readable, _, _ = select.select([connection], [], [], _WATCH_SECONDS)
            try:
                if readable and not done.is_set() and not connection.recv(1, socket.MSG_PEEK):
                    gone.set()
            except OSError:
                gone.set()
            done.wait(_WATCH_SECONDS if readable else 0)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _request(model: ModelSpec, body: dict[str, Any], headers: dict[str, str], gone: threading.Event) -> ModelRequest:
    """As Triton reads a body: keys with an input's name are that input, `id` is the id, others are parameters."""
    given = {key: value for key, value in body.items() if key not in ("id", "parameters")}
    given |= body.get("parameters", {})
    inputs = {name: _input(model, name, value) for name, value in given.items() if name in model.inputs}
    parameters = {name: value for name, value in given.items() if name not in model.inputs}
    return ModelRequest(model, str(body.get("id", "")), inputs, (), parameters, headers, gone)


def _input(model: ModelSpec, name: str, value: Any) -> InputTensor:
    tensor = model.inputs[name]
    values = tuple(value) if isinstance(value, list) else (value,)
    fitting = {"BYTES": (str,), "BOOL": (bool,)}.get(tensor.datatype, (int, float))
    for each in values:
        if type(each) not in fitting:
            raise RefusedError(f"failed to parse the value of input '{name}' as {tensor.datatype}")
    known = prod(size for size in tensor.dims if size > 0)
    shape = [size if size > 0 else len(values) // known for size in tensor.dims]
    return InputTensor(tensor.datatype, tuple([1, *shape] if model.max_batch_size else shape), values)


def _metadata(model: ModelSpec) -> dict[str, Any]:
    return {
        "name": model.name,
        "versions": ["1"],
        "platform": model.platform,
        **{
            side: [
                {"name": name, "datatype": tensor.datatype, "shape": model.shape(tensor)}
                for name, tensor in tensors.items()
            ]
            for side, tensors in (("inputs", model.inputs), ("outputs", model.outputs))
        },
    }


def _body(request: ModelRequest, response: ModelResponse) -> dict[str, Any]:
    """Outputs by name, one value by itself and several as a list; whichever the client wants, all come."""
    named = {"id": request.id} if request.id else {}
    outputs = {
        name: output.values[0] if len(output.values) == 1 else list(output.values)
        for name, output in response.outputs.items()
    }
    return {**named, "model_name": request.model.name, "model_version": "1", **outputs}
