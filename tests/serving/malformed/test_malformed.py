"""Malformed requests by the thousand: each is refused in one sentence, and no other client notices anything."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks.process_memory import resident_bytes
from inflight.deploy.server.server import Server
from tests.serving.malformed.case import Case
from tests.serving.malformed.grpc_cases import grpc_case
from tests.serving.malformed.http_cases import http_case
from tests.serving.malformed.sender import CaseSender
from tests.serving.malformed.values import MODELS
from tests.serving.raw_requests import generate

MIB = 2**20
GOOD = {"text_input": "The quick brown fox", "max_tokens": 12, "end_id": -1}


def case(number: int) -> Case:
    """The malformed request of that number; the same each time.

    Each is a valid request with one or several things broken, so that it gets past the first checks; values are tiny or
    absurd, never in between, so that nothing takes long.
    """
    source = random.Random(f"0-{number}")
    model = source.choice(MODELS)
    return http_case(source, model) if source.random() < 0.5 else grpc_case(source, model)


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
        "kinds": dict(sender.kinds),
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
