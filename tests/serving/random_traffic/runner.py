"""Sends random requests, behaves as each of them plans, and tells what is wrong with what came."""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from tests.serving.random_traffic.random_request import ENGINE_MODEL, RandomRequest
from tests.serving.raw_requests import GrpcCall, GrpcConnection, TimedResponse, events, post, request

AT_A_TIME = 16
PAUSE_SECONDS = 0.03
"""After which a client leaves that does not wait for a response."""
_ENDS = {"stop", "length", "stop_word", "cancelled", "deadline"}


def perform(visit: RandomRequest, connection: GrpcConnection, http_address: str) -> str | None:
    """Send it, behave as planned, and say what is wrong with what came of it, if anything."""
    if visit.disconnects_after is not None and visit.over_http:
        return _drop(visit, http_address)
    call = connection.send(request(visit.model, visit.tensors, visit.request_id))
    if visit.disconnects_after is not None:
        call.wait_for(visit.disconnects_after)
        if not visit.disconnects_after:
            time.sleep(PAUSE_SECONDS)
        call.cancel()
        call.finish()
        return None
    if visit.stopped_after is not None:
        call.wait_for(visit.stopped_after)
        (stopped,) = connection.send(request(ENGINE_MODEL, _stop_values(visit), visit.request_id)).finish()
        if stopped.error is not None:
            return f"stopping it failed: {stopped.error}"
    return _judge(visit, call)


def _stop_values(visit: RandomRequest) -> dict[str, Any]:
    ids = np.array([visit.prompts[0].ids[:1]], np.int32)
    return {"input_ids": ids, "input_lengths": 1, "request_output_len": 1, "stop": True}


def _drop(visit: RandomRequest, http_address: str) -> str | None:
    """Over HTTP the client reads some events of a stream, or nothing of a whole answer, and closes the connection."""
    if not visit.streamed:
        connection = http.client.HTTPConnection(http_address, timeout=60)
        connection.request("POST", f"/v2/models/{visit.model}/generate", json.dumps(visit.plain))
        time.sleep(PAUSE_SECONDS)
        connection.close()
        return None
    left = visit.disconnects_after or 0
    with post(http_address, f"/v2/models/{visit.model}/generate_stream", visit.plain) as response:
        for _, event in events(response):
            if "error" in event:
                return f"refused over HTTP: {event['error']}"
            left -= 1
            if left <= 0:
                break
    return None


def _judge(visit: RandomRequest, call: GrpcCall) -> str | None:
    responses = call.finish()
    errors = [response.error for response in responses if response.error is not None]
    if visit.refused is not None:
        refused = len(responses) == 1 and errors and visit.refused in errors[0]
        return None if refused else f"not refused with one sentence: {responses}"
    if errors:
        return f"an error: {errors}"
    ends = [response.finish_reason for response in responses if response.finish_reason is not None]
    if len(ends) != visit.answers or not set(ends) <= _ENDS:
        return f"{len(ends)} ends in place of {visit.answers}: {ends}"
    if not set(ends) <= visit.ends:
        return f"ended by {ends} and not by {visit.ends}"
    if responses[-1].finish_reason is None:
        return "something came after the end"
    visit.received = _said(visit, responses)
    return _compare(visit, visit.received)


def _said(visit: RandomRequest, responses: Sequence[TimedResponse]) -> list[Any]:
    """The answer to each prompt, as `wanted`."""
    found: list[Any] = []
    for row in range(len(visit.prompts)):
        mine = [one for one in responses if len(visit.prompts) == 1 or one.count("batch_index") == row]
        if visit.model == ENGINE_MODEL:
            found.append([token for response in mine for token in response.token_ids])
        else:
            found.append("".join(response.text for response in mine))
    return found


def _compare(visit: RandomRequest, said: list[Any]) -> str | None:
    if visit.expected is not None and said != visit.expected:
        return f"said {said!r} and not {visit.expected!r}"
    if visit.pattern is not None and not re.fullmatch(visit.pattern, said[0]):
        return f"said {said!r}, which does not match {visit.pattern}"
    return None


def run(visits: Sequence[RandomRequest], grpc_address: str, http_address: str) -> list[str]:
    """AT_A_TIME of them, the next as soon as one is over; what is wrong with which."""

    def one(visit: RandomRequest) -> str | None:
        try:
            complaint = perform(visit, connection, http_address)
        except Exception as error:
            complaint = f"{type(error).__name__}: {error}"
        return complaint and f"{visit.request_id}, {visit.model} {visit.values}: {complaint}"

    with GrpcConnection(grpc_address) as connection, ThreadPoolExecutor(AT_A_TIME) as pool:
        return [*(complaint for complaint in pool.map(one, visits) if complaint), *_unlike_twins(visits)]


def _unlike_twins(visits: Sequence[RandomRequest]) -> Iterator[str]:
    first: dict[int, RandomRequest] = {}
    for visit in visits:
        if visit.same_seed_as is None:
            continue
        other = first.setdefault(visit.same_seed_as, visit)
        if visit.received != other.received:
            yield f"{visit.request_id} and {other.request_id} have one seed and say two things: {visit} {other}"
