"""Other people's deployments over networks that cut, lose and double: their answers have no count, and are never cut.

Whole responses of a stream that are doubled or lost can't be distinguished from others there, as docs/client.md says.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Literal, NamedTuple

import pytest
from inflight_client import InflightError
from inflight_client.retry import NO_RETRY

from tests.client.support.client_variants import CLIENT_VARIANTS, ClientVariant, SyncCaller
from tests.fixtures.engines import TinyCheckpoint
from tests.standins.faulty_network.proxy import Faults, FaultyNetwork
from tests.standins.faulty_network.toxics import CutAt, Drop, Duplicate, Toxic, UnitFault
from tests.standins.kserve import StandInServer
from tests.standins.kserve.repository import llmapi, text_models

PROMPT = "The quick brown fox jumps over"
TOKENS = 8
BRIEF = 0.5
"""Seconds for calls that may wait for what never comes."""
MARGIN = 15.0
PLACES = (40, 170, 330, 500, 700)
"""Bytes behind which a stream is struck: in its head, and in and between its responses."""
KINDS = {"ensemble": text_models(), "bls": text_models(without=("ensemble",)), "llmapi": llmapi()}
some_ways = pytest.mark.parametrize(
    "way", [pytest.param(way, marks=pytest.mark.slow if way.aio else ()) for way in CLIENT_VARIANTS], ids=str
)


class Served(NamedTuple):
    kind: str
    server: StandInServer

    def port(self, way: ClientVariant) -> str:
        return self.server.http_address.removeprefix("http://") if way.protocol == "http" else self.server.grpc_address


@pytest.fixture(scope="module", params=KINDS)
def running(request: pytest.FixtureRequest, tiny_checkpoint: TinyCheckpoint) -> Iterator[Served]:
    with StandInServer(KINDS[request.param], tiny_checkpoint("llama")) as server:
        yield Served(request.param, server)


@pytest.fixture
def served(running: Served, monkeypatch: pytest.MonkeyPatch) -> Served:
    # gRPC logs what it can't read, and pytest keeps what is logged with its traceback, and so gRPC's call.
    monkeypatch.setattr(logging.getLogger("grpc._common"), "disabled", True)
    return running


def said(caller: SyncCaller, seconds: float, stream: bool = True) -> str | InflightError:
    """The text of an answer, or what it failed of; in time."""
    began = time.monotonic()
    try:
        if not stream:
            return caller.generate(PROMPT, max_tokens=TOKENS, timeout=seconds).text
        return "".join(delta.text for delta in caller.stream(PROMPT, max_tokens=TOKENS, timeout=seconds))
    except InflightError as error:
        return error
    finally:
        assert time.monotonic() - began < seconds + MARGIN


def struck(way: ClientVariant, served: Served, toxic: Toxic, stream: bool = True) -> str | InflightError:
    """What a call says on a connection that is damaged after an answer has passed over it."""
    with (
        FaultyNetwork(served.port(way)) as network,
        way.client_at(way.url(network.address), retry=NO_RETRY) as caller,
    ):
        assert said(caller, 30.0) == PROMPT
        network.disturb(Faults((), (toxic,)))
        return said(caller, BRIEF, stream)


@some_ways
@pytest.mark.parametrize("how", ["fin", pytest.param("rst", marks=pytest.mark.slow), "half"])
def test_a_stream_that_is_cut_is_never_taken_for_whole(
    way: ClientVariant, served: Served, how: Literal["fin", "rst", "half"]
) -> None:
    for place in PLACES:
        got = struck(way, served, CutAt(place, how))
        assert got == PROMPT or isinstance(got, InflightError), f"cut behind {place} bytes: {got!r}"
    first = struck(way, served, CutAt(PLACES[0], how))
    assert isinstance(first, InflightError)
    assert first.code in ("server_gone", "answer_damaged", "deadline_exceeded")


@some_ways
@pytest.mark.parametrize("what", ["twice", "lost"])
def test_bytes_that_are_doubled_or_lost_give_no_other_text(
    way: ClientVariant, served: Served, what: Literal["twice", "lost"]
) -> None:
    for place in PLACES[::2]:
        got = struck(way, served, Duplicate(place, 40) if what == "twice" else Drop(place, 40))
        assert got == PROMPT or isinstance(got, InflightError), f"{what} at {place}: {got!r}"


@some_ways
@pytest.mark.parametrize("what", ["twice", "lost"])
def test_the_text_of_a_whole_answer_comes_once(
    way: ClientVariant, served: Served, what: Literal["twice", "lost"]
) -> None:
    fault = UnitFault("frame" if way.protocol == "grpc" else "chunk", 0, what)
    got = struck(way, served, fault, stream=False)
    assert got == PROMPT or isinstance(got, InflightError), got
