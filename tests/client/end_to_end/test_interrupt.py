"""Ctrl-C in the middle of an answer: the call ends here and on the server, and the client goes on."""

from __future__ import annotations

import time

from inflight.deploy.server.server import Server
from tests.client.support.client_variants import ClientVariant, every_client
from tests.client.support.expected_answers import expected
from tests.client.support.interrupt_program import FIRST
from tests.client.support.interrupt_runner import interruptible
from tests.client.support.leak_checks import idle
from tests.serving.metrics_page import page_when

SOON = 30.0
"""Seconds, long before LONG tokens could have been said."""


def ends_soon(server: Server) -> None:
    began = time.monotonic()
    page_when(server, idle)
    assert time.monotonic() - began < SOON


@every_client
def test_an_interrupted_answer_ends_on_the_server_and_the_client_goes_on(
    way: ClientVariant, paced_server: Server
) -> None:
    """A stream that is closed keeps what came; then one that is forgotten, then a whole answer, by the same client."""
    with interruptible(str(way), way.url(way.port(paced_server))) as program:
        assert program.said() == {"at": FIRST}
        program.interrupt()
        closed = program.said()
        assert closed["interrupted"]
        assert closed["closing"] < SOON
        assert closed["text"]
        assert not closed["whole"]
        ends_soon(paced_server)
        program.go_on()
        assert program.said() == {"more_threads": []}

        program.go_on()
        assert program.said() == {"at": FIRST}
        program.interrupt()
        assert program.said()["interrupted"]
        ends_soon(paced_server)

        program.go_on()
        page_when(paced_server, lambda page: page.requests["active"] > 0)
        program.interrupt()
        assert program.said()["interrupted"]
        ends_soon(paced_server)

        program.go_on()
        assert program.said() == {"text": expected(paced_server, 4), "used": True}
        ends_soon(paced_server)
        program.go_on()
