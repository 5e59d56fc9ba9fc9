"""Sends malformed requests, several at a time, and tells what became of each: an answer, a sentence, or silence."""

from __future__ import annotations

import http.client
import io
import json
import re
import socket
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc
from inflight_client.protocol import channel_options
from tritonclient.grpc import service_pb2

from inflight.deploy.server import Server
from tests.serving.malformed import Case, GrpcCase, HttpCase

PATIENCE_SECONDS = 30.0
_AT_A_TIME = 8
_SERVICE = "/inference.GRPCInferenceService"
_LONGEST_SENTENCE = 2000
_NOT_A_SENTENCE = re.compile(r"Traceback|\bAt:|File \"|\n\s*\S")


@dataclass(frozen=True)
class Outcome:
    """What became of a request: `served`, `refused` (then with its sentence), `silent`, `closed` or `hanging`.

    `silent`: the call ended well, and said nothing at all. `closed`: the connection was closed without an answer.
    """

    kind: str
    sentence: str = ""


def judged(case: Case, outcome: Outcome) -> str | None:
    """What is wrong with the outcome of a case, if anything."""
    if outcome.kind == "hanging" and (not isinstance(case, HttpCase) or case.whole):
        return f"no end within {PATIENCE_SECONDS:.0f} s"
    if outcome.kind == "silent":
        return "it ended without a response"
    if outcome.kind == "closed" and (not isinstance(case, HttpCase) or case.whole):
        return f"closed without an answer: {outcome.sentence}"
    if outcome.kind == "refused":
        if not outcome.sentence.strip():
            return "refused without a word"
        if _NOT_A_SENTENCE.search(outcome.sentence) or len(outcome.sentence) > _LONGEST_SENTENCE:
            return f"no sentence: {outcome.sentence[:300]!r}"
    return None


class Sender:
    """Sends cases to one server; counts what became of them, and collects what is wrong."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._channel = grpc.insecure_channel(server.grpc_address, options=channel_options(server.grpc_address))
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []

    def send(self, cases: Callable[[int], Case], numbers: range) -> None:
        def one(number: int) -> None:
            case = cases(number)
            outcome = self.outcome(case)
            complaint = judged(case, outcome)
            with self._lock:
                self.counts[outcome.kind] += 1
                if complaint:
                    self.wrong.append(f"number {number}, {case.name}: {complaint}")

        with ThreadPoolExecutor(_AT_A_TIME) as pool:
            list(pool.map(one, numbers))

    def outcome(self, case: Case) -> Outcome:
        return self._over_grpc(case) if isinstance(case, GrpcCase) else over_http(self._server.http_address, case)

    def _over_grpc(self, case: GrpcCase) -> Outcome:
        try:
            if not case.stream:
                single = self._channel.unary_unary(
                    f"{_SERVICE}/ModelInfer", bytes, service_pb2.ModelInferResponse.FromString
                )
                single(case.raw, timeout=PATIENCE_SECONDS)
                return Outcome("served")
            stream = self._channel.stream_stream(
                f"{_SERVICE}/ModelStreamInfer", bytes, service_pb2.ModelStreamInferResponse.FromString
            )
            responses = list(stream(iter([case.raw]), timeout=PATIENCE_SECONDS))
        except grpc.RpcError as error:
            kind = "hanging" if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED else "refused"
            return Outcome(kind, error.details() or "")
        errors = [response.error_message for response in responses if response.error_message]
        if errors:
            return Outcome("refused", errors[0])
        return Outcome("served" if responses else "silent")

    def close(self) -> None:
        self._channel.close()


def over_http(address: str, case: HttpCase) -> Outcome:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS if case.whole else 1.0) as connection:
            try:
                connection.sendall(case.raw)
            except ConnectionError:
                pass  # the server refused before it had read all; its answer may still be there
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
    except TimeoutError:
        return Outcome("hanging")
    except ConnectionError as error:
        return Outcome("closed", str(error))
    return _read(answer) if answer else Outcome("closed")


def _read(answer: bytes) -> Outcome:
    response = http.client.HTTPResponse(_Reader(answer))  # type: ignore[arg-type]
    response.begin()
    body = response.read()
    events = [json.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: ")]
    errors = [str(event["error"]) for event in events if "error" in event]
    if errors:
        return Outcome("refused", errors[0])
    if response.status == 200:
        return Outcome("served")
    return Outcome("refused", _sentence(body) or response.reason)


def _sentence(body: bytes) -> str:
    try:
        found: Any = json.loads(body)["error"]
        return str(found)
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")


class _Reader:
    """Bytes where http.client expects a socket."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def makefile(self, _: str) -> io.BytesIO:
        return io.BytesIO(self._content)
