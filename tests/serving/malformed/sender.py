"""Sends malformed requests, several at a time, and tells what became of each: an answer, a sentence, or silence."""

from __future__ import annotations

import http.client
import json
import re
import threading
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import grpc
from inflight_client._grpc.channel import options
from inflight_client.address import Address
from tritonclient.grpc import service_pb2

from inflight.deploy.server.server import Server
from tests.serving.malformed.case import Case, GrpcCase, HttpCase
from tests.serving.raw_requests import post

PATIENCE_SECONDS = 60.0
AT_A_TIME = 8
_SERVICE = "/inference.GRPCInferenceService"
_LONGEST_SENTENCE = 2000
_NOT_A_SENTENCE = re.compile(
    r"Traceback|\bAt:|File \"|\n\s*\S|\b[A-Z]\w+(Error|Exception)\b|Failed to process the request"
)


@dataclass(frozen=True)
class CaseOutcome:
    """What became of a request: `served`, `refused` (then with its sentence), `silent`, `closed` or `hanging`.

    `silent`: the call ended well, and said nothing at all. `closed`: the connection was closed without an answer.
    """

    kind: str
    sentence: str = ""


def problem_of(case: Case, outcome: CaseOutcome) -> str | None:
    """What is wrong with the outcome of a case, if anything."""
    if outcome.kind == "refused":
        return _judged_sentence(outcome.sentence)
    if outcome.kind in case.others:
        return None
    return f"{outcome.kind} {outcome.sentence}"


def _judged_sentence(sentence: str) -> str | None:
    if not sentence.strip():
        return "refused without a word"
    if _NOT_A_SENTENCE.search(sentence) or len(sentence) > _LONGEST_SENTENCE:
        return f"no sentence: {sentence[:300]!r}"
    return None


class CaseSender:
    """Sends cases to one server; counts what became of them by outcome and kind; collects what is wrong."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._channel = grpc.insecure_channel(server.grpc_address, options=options(Address.parse(server.grpc_address)))
        self._lock = threading.Lock()
        self.outcomes: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self.wrong: list[str] = []

    def send(self, cases: Iterable[Case]) -> None:
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            list(pool.map(self._send, cases))

    def _send(self, case: Case) -> None:
        outcome = self.outcome(case)
        complaint = problem_of(case, outcome)
        with self._lock:
            self.outcomes[outcome.kind] += 1
            self.kinds[case.kind] += 1
            if complaint:
                self.wrong.append(f"{case.kind}, {case.name}: {complaint}")

    def outcome(self, case: Case) -> CaseOutcome:
        return self._over_grpc(case) if isinstance(case, GrpcCase) else over_http(self._server.http_address, case)

    def _over_grpc(self, case: GrpcCase) -> CaseOutcome:
        try:
            if not case.stream:
                single = self._channel.unary_unary(
                    f"{_SERVICE}/ModelInfer", bytes, service_pb2.ModelInferResponse.FromString
                )
                single(case.raw, timeout=PATIENCE_SECONDS)
                return CaseOutcome("served")
            stream = self._channel.stream_stream(
                f"{_SERVICE}/ModelStreamInfer", bytes, service_pb2.ModelStreamInferResponse.FromString
            )
            responses = list(stream(iter([case.raw]), timeout=PATIENCE_SECONDS))
        except grpc.RpcError as error:
            kind = "hanging" if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED else "refused"
            return CaseOutcome(kind, error.details() or "")
        errors = [response.error_message for response in responses if response.error_message]
        if errors:
            return CaseOutcome("refused", errors[0])
        return CaseOutcome("served" if responses else "silent")

    def close(self) -> None:
        self._channel.close()


def over_http(address: str, case: HttpCase) -> CaseOutcome:
    try:
        with post(address, case.path, case.body) as response:
            body = response.read()
    except TimeoutError:
        return CaseOutcome("hanging")
    except (ConnectionError, http.client.HTTPException) as error:
        return CaseOutcome("closed", repr(error))
    events = [json.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: ")]
    errors = [str(event["error"]) for event in events if "error" in event]
    if errors:
        return CaseOutcome("refused", errors[0])
    if response.status != 200 or body.startswith(b'{"error"'):
        return CaseOutcome("refused", str(json.loads(body)["error"]))
    return CaseOutcome("served" if body else "silent")
