"""Many prompts at once: when they are read, when answers are handed out, and how it ends, whatever stands still."""

from __future__ import annotations

import asyncio
import itertools
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import aclosing, closing, contextmanager
from typing import Any

import grpc
import pytest
from inflight_client import AsyncClient, Client, Generation, InvalidRequest
from inflight_client.handout import AHEAD, END_SECONDS

from tests.client.leftovers import run
from tests.client.scripted_server import response, serving
from tests.standins.weak_network import Faults, WeakNetwork
from tests.standins.weak_toxics import Stall

SOON = 30.0
"""Seconds within which what is there is handed out, on a slow and busy machine too."""
PROMPTS = [f"tea {number}" for number in range(12)]
WAIT = "wait"


class SourceError(Exception):
    """What goes wrong where prompts come from."""


class LoopError(Exception):
    """What goes wrong in a caller's own loop."""


class Held:
    """Answers that wait for the test: those to WAIT are given once `go` is set, all others say what they were asked."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.asked: list[str] = []
        self.waiting = 0
        self._counting = threading.Lock()

    def __call__(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        prompt = _prompt(request)
        self.asked.append(prompt)
        if prompt == WAIT:
            self._wait(context)
        yield response(prompt, "stop", 1, 1)

    def _wait(self, context: grpc.ServicerContext) -> None:
        with self._counting:
            self.waiting += 1
        while context.is_active() and not self.go.wait(0.02):
            pass
        with self._counting:
            self.waiting -= 1


def _prompt(request: Any) -> str:
    at = next(place for place, tensor in enumerate(request.inputs) if tensor.name == "text_input")
    return str(request.raw_input_contents[at][4:].decode())


@pytest.fixture
def held() -> Iterator[Held]:
    script = Held()
    yield script
    script.go.set()


@pytest.fixture
def address(held: Held) -> Iterator[str]:
    with serving(held) as (_, where):
        yield where


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    with Client(address) as made:
        yield made


def waiting(prompts: Iterable[str], go: threading.Event) -> Iterator[str]:
    """Prompts, and then a wait for more that may never come."""
    yield from prompts
    go.wait()


async def waiting_later(prompts: Iterable[str]) -> AsyncIterator[str]:
    for prompt in prompts:
        yield prompt
    await asyncio.Event().wait()


@pytest.mark.parametrize("as_completed", [False, True])
def test_what_is_answered_is_handed_out_while_the_source_waits(client: Client, as_completed: bool) -> None:
    never = threading.Event()
    answers = client.generate_many(waiting(PROMPTS, never), concurrency=4, as_completed=as_completed)
    with closing(answers):
        came = list(itertools.islice(answers, len(PROMPTS)))
        began = time.monotonic()
    assert time.monotonic() - began < END_SECONDS  # nobody waits for the source
    never.set()
    assert sorted(_texts(came)) == sorted(PROMPTS)


@pytest.mark.parametrize("as_completed", [False, True])
def test_asyncio_hands_out_what_is_answered_while_the_source_waits(address: str, as_completed: bool) -> None:
    async def work() -> list[Any]:
        async with AsyncClient(address) as client:
            answers = client.generate_many(waiting_later(PROMPTS), concurrency=4, as_completed=as_completed)
            async with asyncio.timeout(SOON), aclosing(answers):
                return [await anext(answers) for _ in PROMPTS]

    assert sorted(_texts(run(work))) == sorted(PROMPTS)


def _texts(came: Iterable[Any]) -> list[str]:
    return [(each[1] if isinstance(each, tuple) else each).text for each in came]


@pytest.mark.parametrize("concurrency", [1, 3])
def test_prompts_may_depend_on_answers(client: Client, concurrency: int) -> None:
    prompts: queue.Queue[str] = queue.Queue()
    prompts.put("0")

    def source() -> Iterator[str]:
        for _ in range(5):
            yield prompts.get(timeout=SOON)

    said = []
    for _, answer in client.generate_many(source(), concurrency=concurrency, as_completed=True):
        said.append(answer.text)
        prompts.put(str(int(answer.text) + 1))
    assert said == ["0", "1", "2", "3", "4"]


def test_prompts_of_asyncio_may_depend_on_answers(address: str) -> None:
    async def work() -> list[str]:
        prompts: asyncio.Queue[str] = asyncio.Queue()
        prompts.put_nowait("0")

        async def source() -> AsyncIterator[str]:
            for _ in range(5):
                yield await prompts.get()

        said = []
        async with AsyncClient(address) as client, asyncio.timeout(SOON):
            async for _, answer in client.generate_many(source(), as_completed=True):
                said.append(answer.text)
                prompts.put_nowait(str(int(answer.text) + 1))
        return said

    assert run(work) == ["0", "1", "2", "3", "4"]


def test_a_slow_answer_holds_up_no_others(client: Client, held: Held) -> None:
    answers = client.generate_many([WAIT, *PROMPTS], concurrency=2, as_completed=True)
    others = [next(answers) for _ in PROMPTS]
    assert [place for place, _ in others] == list(range(1, 13))
    held.go.set()
    assert [(place, answer.text) for place, answer in answers] == [(0, WAIT)]


def test_in_order_no_more_is_read_than_is_soon_handed_out(client: Client, held: Held) -> None:
    """The first answer waits: the others are asked for, up to a bound, and then handed out in their order."""
    source = _Counted(itertools.chain([WAIT], map(str, itertools.count(1))))
    answers = client.generate_many(source, concurrency=2)
    first: list[Generation] = []
    reader = threading.Thread(target=lambda: first.append(next(answers)))
    reader.start()
    until(lambda: len(held.asked) == 2 * AHEAD)
    assert source.read == 2 * AHEAD
    held.go.set()
    reader.join(SOON)
    with closing(answers):
        assert _texts([*first, *itertools.islice(answers, 20)]) == [WAIT, *map(str, range(1, 21))]
    assert source.read <= 21 + 2 * AHEAD


class _Counted(Iterator[str]):
    """Prompts, and how many of them were read."""

    def __init__(self, prompts: Iterable[str]) -> None:
        self._prompts = iter(prompts)
        self.read = 0

    def __next__(self) -> str:
        self.read += 1
        return next(self._prompts)


def until(there: Callable[[], bool]) -> None:
    end = time.monotonic() + SOON
    while not there():
        assert time.monotonic() < end
        time.sleep(0.01)


def failing(prompts: Iterable[str]) -> Iterator[str]:
    yield from prompts
    raise SourceError


@pytest.mark.parametrize("as_completed", [False, True])
@pytest.mark.parametrize("prompts", [[], PROMPTS[:5]])
def test_a_source_that_raises_loses_no_answer(client: Client, prompts: list[str], as_completed: bool) -> None:
    came: list[Any] = []
    with pytest.raises(SourceError):
        _take(client.generate_many(failing(prompts), concurrency=2, as_completed=as_completed), came)
    assert sorted(_texts(came)) == prompts


def _take(answers: Iterable[Any], came: list[Any]) -> None:
    """All of them, and those before an error, too."""
    for answer in answers:
        came.append(answer)  # extend would lose them


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_source_that_raises_loses_no_answer_of_asyncio(address: str, asynchronous: bool) -> None:
    async def later() -> AsyncIterator[str]:
        for prompt in PROMPTS[:5]:
            yield prompt
        raise SourceError

    came: list[Generation] = []

    async def work() -> None:
        async with AsyncClient(address) as client:
            source = later() if asynchronous else failing(PROMPTS[:5])
            async for answer in client.generate_many(source, concurrency=2):
                came.append(answer)

    with pytest.raises(SourceError):
        run(work)
    assert _texts(came) == PROMPTS[:5]


def test_a_refused_prompt_stands_in_its_place(client: Client) -> None:
    prompts: list[Any] = ["a", [], "b"]
    first, second, third = client.generate_many(prompts, concurrency=1, return_errors=True)
    assert isinstance(second, InvalidRequest)
    assert _texts([first, third]) == ["a", "b"]
    answers = client.generate_many(prompts, concurrency=1)
    assert next(answers).text == "a"
    with pytest.raises(InvalidRequest):
        next(answers)


@pytest.mark.parametrize("as_completed", [False, True])
def test_without_prompts_there_are_no_answers(client: Client, as_completed: bool) -> None:
    assert list(client.generate_many([], as_completed=as_completed)) == []


def _agenerator() -> AsyncIterator[str]:
    return waiting_later(["tea"])


@pytest.mark.parametrize("make", [_agenerator, lambda: "one text", lambda: 7])
def test_what_is_no_source_is_refused_at_once(client: Client, make: Callable[[], Any]) -> None:
    with pytest.raises(InvalidRequest, match="the prompts are a") as raised:
        client.generate_many(make())
    assert raised.value.code == "invalid_parameter"


def test_thousands_of_prompts_take_the_memory_of_a_few(client: Client) -> None:
    """They are refused before they are sent, so that it takes a moment; each is of some size."""
    prompts: Iterator[Any] = ({"prompt": number, "text": "x" * 10_000} for number in range(3000))
    tracemalloc.start()
    try:
        places = [
            place
            for place, outcome in client.generate_many(prompts, as_completed=True, return_errors=True)
            if isinstance(outcome, InvalidRequest)
        ]
        assert tracemalloc.get_traced_memory()[1] < 10e6  # together they are 30 MB
    finally:
        tracemalloc.stop()
    assert sorted(places) == list(range(3000))


@contextmanager
def no_thread_left() -> Iterator[None]:
    yield
    until(lambda: not any(thread.name == "generate_many" for thread in threading.enumerate()))


@pytest.mark.parametrize("as_completed", [False, True])
def test_an_error_of_the_callers_own_ends_what_is_on_its_way(client: Client, held: Held, as_completed: bool) -> None:
    def loop() -> None:
        for _ in client.generate_many(["a", WAIT, WAIT], concurrency=3, as_completed=as_completed):
            until(lambda: held.waiting == 2)
            raise LoopError

    with no_thread_left(), pytest.raises(LoopError):
        loop()
    until(lambda: held.waiting == 0)


def interrupted(work: Callable[[], Any], at: Callable[[], bool]) -> float:
    """Ctrl-C while it waits; seconds until it ended by that."""
    began: list[float] = []

    def interrupt() -> None:
        until(at)
        began.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        work()
    ended = time.monotonic()
    thread.join()
    return ended - began[0]


def test_ctrl_c_ends_the_calls(client: Client, held: Held) -> None:
    with no_thread_left():
        interrupted(lambda: list(client.generate_many([WAIT] * 4, concurrency=2)), lambda: held.waiting == 2)
    until(lambda: held.waiting == 0)
    assert client.generate("last").text == "last"


@pytest.mark.parametrize("protocol", ["http", pytest.param("grpc", marks=pytest.mark.slow)])
def test_ctrl_c_ends_calls_that_reached_nobody_yet(address: str, protocol: str) -> None:
    """The first connection stands still, and what is asked of the server has no deadline."""
    with (
        WeakNetwork(address, Faults((Stall(),), (Stall(),))) as network,
        no_thread_left(),
        Client(f"{protocol}://{network.address}") as client,
    ):
        connected = time.monotonic() + 0.5
        late = interrupted(
            lambda: list(client.generate_many(["a"] * 3, concurrency=2)), lambda: time.monotonic() > connected
        )
    assert late < END_SECONDS + 3


EXITS = """
import sys, threading
from inflight_client import Client

def source():
    yield "tea"
    threading.Event().wait()

client = Client(sys.argv[1])
answers = client.generate_many(source())
print(next(answers).text, flush=True)
"""


def test_a_source_that_waits_for_ever_keeps_no_program_from_ending(address: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXITS, address], capture_output=True, text=True, timeout=2 * SOON, check=True
    )
    assert (done.stdout, done.stderr) == ("tea\n", "")
