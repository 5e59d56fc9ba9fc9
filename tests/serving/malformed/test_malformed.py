"""Malformed requests by the thousand: each is refused in one sentence, and no other client notices anything."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks.process_memory import resident_bytes
from inflight.deploy.server.server import Server
from tests.fixtures.engines import TinyEngine
from tests.fixtures.waiting import wait_until
from tests.serving.malformed.case import HttpCase
from tests.serving.malformed.cases import case
from tests.serving.malformed.http_cases import http_post, json_tensors
from tests.serving.malformed.sender import CaseSender, over_http
from tests.serving.raw_requests import generate

MIB = 2**20
GOOD = {"text_input": "The quick brown fox", "max_tokens": 12, "end_id": -1}


@contextmanager
def good_requests(server: Server) -> Iterator[None]:
    """Beside what happens in the block a good request runs, again and again, and is answered as it is alone."""
    alone = generate(server.http_address, GOOD)
    assert alone[0] == 200
    beside: list[object] = []
    over = threading.Event()

    def ask() -> None:
        while not over.wait(0.05):
            try:
                beside.append(generate(server.http_address, GOOD))
            except Exception as error:
                beside.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert beside
    assert [answer for answer in beside if answer != alone] == []


def memory(server: Server) -> float:
    """MiB that the server's processes hold, once they are at rest."""
    time.sleep(0.5)
    return sum(resident_bytes(member) or 0 for member in server.instance.process_tree) / MIB


@pytest.mark.parametrize("count", [1000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_each_is_refused_in_one_sentence_and_nobody_else_notices(server: Server, count: int) -> None:
    family = server.instance.process_tree
    sender = CaseSender(server)
    warm_up = count * 3 // 10
    begin = time.monotonic()
    with good_requests(server):
        sender.send(map(case, range(warm_up)))
        before = memory(server)
        sender.send(map(case, range(warm_up, count)))
    sender.close()
    after = memory(server)
    report = {
        "outcomes": dict(sender.outcomes),
        "codes": dict(sender.codes),
        "kinds": dict(sender.kinds),
        "Triton's own sentences": dict(sender.tritons),
        "MiB": [round(before), round(after)],
        "seconds": round(time.monotonic() - begin),
    }
    print(report)
    assert sender.wrong == []
    assert sender.outcomes.total() == count
    assert sender.outcomes["refused"] >= 0.9 * count
    assert len(sender.kinds) >= 60
    assert (server.instance.process_tree, server.restarts, server.ready) == (family, 0, True)
    # What the allocators keep of the largest bodies comes and goes by some MiB.
    assert after <= before + 32, report


def with_shape(model: str, name: str, shape: list[int]) -> HttpCase:
    """A request to the inference endpoint whose JSON gives a tensor of numbers an absurd shape."""
    tensors = [{**tensor, "shape": shape} if tensor["name"] == name else tensor for tensor in json_tensors(model)]
    return http_post(f"/v2/models/{model}/infer", "absurd shape", json.dumps({"inputs": tensors}).encode())


def nested(levels: int) -> HttpCase:
    """A request whose stop words are arrays in arrays, each of them closed."""
    body = b'{"text_input": "tea", "max_tokens": 4, "stop_words": ' + b"[" * levels + b"]" * levels + b"}"
    return http_post("/v2/models/ensemble/generate", "nesting that ends", body)


def in_chunks(count: int) -> HttpCase:
    """A body that comes in chunks of one byte."""
    head = b"POST /v2/models/ensemble/generate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    return HttpCase("many chunks", f"{count} chunks", head + b"1\r\na\r\n" * count + b"0\r\n\r\n")


FATAL = {
    "a body of 600,000 chunks": in_chunks(600_000),
    "nesting of 40,000 levels in 80 kB": nested(40_000),
    "nesting a million deep": http_post(
        "/v2/models/ensemble/generate", "nesting", b'{"text_input": "tea", "max_tokens": 4, "deep": ' + b'{"a":' * 10**6
    ),
    "a shape larger than any memory": with_shape("preprocessing", "REQUEST_OUTPUT_LEN", [1, 2**61]),
    "a shape whose size overflows": with_shape("postprocessing", "SEQUENCE_LENGTH", [2**62, 2**62]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FATAL)
def test_what_triton_itself_dies_of_before_a_model_sees_it(tiny_engine: TinyEngine, name: str) -> None:
    """Where this fails with a newer Triton because the server runs on, the case belongs among those above."""
    with Server(tiny_engine("llama")) as server:
        alone = generate(server.http_address, GOOD)
        assert over_http(server.http_address, FATAL[name]).kind in ("closed", "refused")
        wait_until(lambda: server.restarts == 1 and server.ready)
        assert generate(server.http_address, GOOD) == alone
