"""Networks that delay, cut, stall, double, lose and garble: no call passes its deadline, none returns a wrong text."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator
from typing import Literal

import pytest
from inflight_client import InflightError

from inflight.deploy.repository.configure import DeploymentOptions
from inflight.deploy.server.server import Server
from tests.client.support.client_variants import ClientVariant, SyncCaller, both_protocols
from tests.client.support.expected_answers import PROMPT, expected
from tests.client.support.leak_checks import nothing_left
from tests.fixtures.crashes import shared_server
from tests.fixtures.engines import TinyEngine
from tests.fixtures.server import fake_engine
from tests.standins.faulty_network.proxy import Faults, FaultyNetwork
from tests.standins.faulty_network.toxics import (
    Corrupt,
    CutAt,
    Drop,
    Duplicate,
    Slow,
    StallAt,
    Toxic,
    Trickle,
    UnitFault,
)

SOON = 30.0
"""Seconds within which a call succeeds that can, by its retries perhaps."""
BRIEF = 0.5
"""Seconds for calls that may well be late, as what they wait for may never come."""
MARGIN = 15.0
"""Seconds by which a call may be later than its deadline on a machine that is busy and slow."""
OTHER = "something else"
TOKENS = 6
CLEAN = Faults()


@pytest.fixture(scope="module")
def quick_server(tiny_engine: TinyEngine) -> Iterator[Server]:
    with shared_server(tiny_engine("llama"), DeploymentOptions(parameters=fake_engine(step_seconds=0.005))) as running:
        yield running


@pytest.fixture
def served(quick_server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """The server; behind the test nothing may be left."""
    # gRPC logs what it can't read, and pytest keeps what is logged with its traceback, and so gRPC's call.
    monkeypatch.setattr(logging.getLogger("grpc._common"), "disabled", True)
    with nothing_left(quick_server):
        yield quick_server


def asked(caller: SyncCaller, server: Server, prompt: str, seconds: float, stream: bool = True) -> str:
    """The code of the error that a call ended with, empty for none; what it says must be right, and in time."""
    began = time.monotonic()
    try:
        if stream:
            text = "".join(delta.text for delta in caller.stream(prompt, max_tokens=TOKENS, timeout=seconds))
        else:
            text = caller.generate(prompt, max_tokens=TOKENS, timeout=seconds).text
    except InflightError as error:
        return error.code
    finally:
        assert time.monotonic() - began < seconds + MARGIN
    assert text == expected(server, TOKENS, prompt)
    return ""


def struck(
    way: ClientVariant, server: Server, faults: Faults, seconds: float = SOON, later: Faults = CLEAN
) -> list[str]:
    """The codes of calls on a connection that is damaged after an answer has passed over it.

    Further connections have the faults `later`. When the network is well again, so are calls.
    """
    with FaultyNetwork(way.port(server)) as network, way.client(server, network.address) as caller:
        assert asked(caller, server, PROMPT, SOON, stream=False) == ""
        network.set(later)
        network.disturb(faults)
        codes = [asked(caller, server, *call) for call in ((PROMPT, seconds), (OTHER, seconds, False))]
        network.set(CLEAN)
        network.disturb(Faults((CutAt(),), (CutAt(),)))
        assert asked(caller, server, OTHER, SOON, stream=False) == ""
    return codes


@both_protocols
@pytest.mark.parametrize("pace", ["slow", "byte by byte"])
def test_a_slow_network_changes_nothing(way: ClientVariant, served: Server, pace: str) -> None:
    slow = Slow(0.01, 0.01)
    # Triton's HTTP server answers 404 to a path that comes in pieces, so requests come in larger ones there.
    trickle = Faults((Trickle(1 if way.protocol == "grpc" else 80, 0.0),), (Trickle(1, 0.0),))
    faults = Faults((slow,), (slow,)) if pace == "slow" else trickle
    with FaultyNetwork(way.port(served), faults) as network, way.client(served, network.address) as caller:
        for prompt in (PROMPT, OTHER):
            assert asked(caller, served, prompt, SOON) == ""


def one(what: str, place: int) -> Toxic:
    toxics: dict[str, Toxic] = {
        "fin": CutAt(place),
        "rst": CutAt(place, "rst"),
        "half": CutAt(place, "half"),
        "stall": StallAt(place),
        "twice": Duplicate(place, 40),
        "lost": Drop(place, 40),
        "garbled": Corrupt(place, 3),
    }
    return toxics[what]


def strikes(whats: tuple[str, ...], *quick: tuple[str, str, int]) -> pytest.MarkDecorator:
    """Each of these on the way up or down, behind so many bytes: before anything, in a head, in the answer's middle."""
    every = [(what, way, place) for what in whats for way in ("up", "down") for place in (0, 10, 150, 600)]
    marked = [pytest.param(*each, marks=() if each in quick else pytest.mark.slow) for each in every]
    return pytest.mark.parametrize(("what", "direction", "place"), marked)


def only(direction: str, toxic: Toxic) -> Faults:
    return Faults((toxic,), ()) if direction == "up" else Faults((), (toxic,))


@both_protocols
@strikes(("fin", "rst", "half"), ("fin", "down", 600), ("rst", "up", 150))
def test_cut_connections_are_made_anew_before_the_first_token_and_said_behind_it(
    way: ClientVariant, served: Server, what: str, direction: str, place: int
) -> None:
    codes = struck(way, served, only(direction, one(what, place)))
    assert set(codes) <= {"", "server_gone", "answer_damaged"}
    assert codes[-1] == ""


@both_protocols
@strikes(("stall",), ("stall", "down", 150))
def test_a_network_that_falls_silent_ends_calls_by_their_deadlines(
    way: ClientVariant, served: Server, what: str, direction: str, place: int
) -> None:
    codes = struck(way, served, only(direction, one(what, place)), BRIEF, later=Faults((StallAt(),), (StallAt(),)))
    assert codes[-1] == "deadline_exceeded"
    assert set(codes) <= {"", "deadline_exceeded"}


@both_protocols
@strikes(("twice", "lost"), ("twice", "down", 600), ("lost", "up", 10))
def test_bytes_that_are_doubled_or_lost_are_never_taken_for_an_answer(
    way: ClientVariant, served: Server, what: str, direction: str, place: int
) -> None:
    struck(way, served, only(direction, one(what, place)), BRIEF)


@both_protocols
@pytest.mark.parametrize(
    ("what", "number"),
    [
        pytest.param(what, number, marks=() if (what, number) in (("twice", 5), ("lost", 0)) else pytest.mark.slow)
        for what in ("twice", "lost")
        for number in range(6)
    ],
)
def test_whole_units_of_the_protocol_that_are_doubled_or_lost_are_noticed(
    way: ClientVariant, served: Server, what: Literal["twice", "lost"], number: int
) -> None:
    codes = struck(way, served, only("down", UnitFault("frame" if way.protocol == "grpc" else "chunk", number, what)))
    assert codes[0] in ("answer_damaged", "server_gone"), "an answer was taken for whole that was not"


@both_protocols
@pytest.mark.parametrize("what", ["twice", "lost"])
def test_a_request_that_is_doubled_or_lost_gives_nobody_the_answer_to_another(
    way: ClientVariant, served: Server, what: Literal["twice", "lost"]
) -> None:
    struck(way, served, only("up", UnitFault("frame" if way.protocol == "grpc" else "message", 0, what)), BRIEF)


@both_protocols
def test_nobody_listens_for_a_moment(way: ClientVariant, served: Server) -> None:
    with FaultyNetwork(way.port(served)) as network, way.client(served, network.address) as caller:
        network.refuse()
        with pytest.raises(InflightError) as caught:
            caller.generate(PROMPT, max_tokens=TOKENS, timeout=BRIEF)
        assert caught.value.code in ("server_unreachable", "deadline_exceeded")
        network.listen()
        assert asked(caller, served, PROMPT, SOON) == ""


def any_faults(chance: random.Random) -> Faults:
    """Up to two of all that can happen, at places where it may hurt.

    But for garbled bytes: nothing but TLS tells letters from others.
    """

    def toxic() -> Toxic:
        place = chance.choice([0, chance.randrange(100), chance.randrange(4000)])
        what = chance.choice(["fin", "rst", "half", "stall", "twice", "lost", "slow", "trickle"])
        if what == "slow":
            return Slow(chance.random() * 0.05, chance.random() * 0.05)
        return Trickle(chance.randrange(1, 30), 0.0) if what == "trickle" else one(what, place)

    def one_way() -> tuple[Toxic, ...]:
        return tuple(toxic() for _ in range(chance.choice([0, 1, 1, 2])))

    return Faults(one_way(), one_way())


def seeds(count: int, quick: int) -> list[object]:
    return [pytest.param(seed, marks=() if seed < quick else pytest.mark.slow) for seed in range(count)]


@both_protocols
@pytest.mark.parametrize("seed", seeds(40, quick=1))
def test_any_network_gives_right_texts_or_errors_in_time(way: ClientVariant, served: Server, seed: int) -> None:
    chance = random.Random(seed)
    plan = [any_faults(chance) for _ in range(6)]
    with FaultyNetwork(way.port(served), *plan, seed=seed) as network, way.client(served, network.address) as caller:
        for prompt, stream in ((PROMPT, True), (OTHER, False)):
            asked(caller, served, prompt, BRIEF, stream)


@both_protocols
@strikes(("garbled",), ("garbled", "down", 150))
def test_garbled_bytes_break_no_more_than_the_answer(
    way: ClientVariant, served: Server, what: str, direction: str, place: int
) -> None:
    with FaultyNetwork(way.port(served)) as network, way.client(served, network.address) as caller:
        assert asked(caller, served, PROMPT, SOON) == ""
        network.disturb(only(direction, one(what, place)))
        try:
            caller.generate(PROMPT, max_tokens=TOKENS, timeout=BRIEF)
        except InflightError:
            pass
        network.disturb(Faults((CutAt(),), (CutAt(),)))
        assert asked(caller, served, OTHER, SOON) == ""
