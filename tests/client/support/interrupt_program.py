"""A program that Ctrl-C interrupts in the midst of answers; it prints the state then, a JSON object a line.

Its arguments are what to do ("grpc-threads" and the like, or "many") and a URL. Between its steps it waits for a line
on standard input, so that the test can look at the server meanwhile: see interrupt_runner.py.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

from inflight_client import AsyncClient, Client

from tests.client.support.expected_answers import LONG, PROMPT
from tests.client.support.gated_server import WAIT
from tests.client.support.leak_checks import no_task_left, nothing_left
from tests.fixtures.waiting import wait_until

LONGEST = 200.0
"""Seconds after which it ends, and says on standard error where its threads were."""
FIRST = "the first text came"


class ProgramClient(NamedTuple):
    """A client, how what its methods give is waited for, and how one of its streams is read to its end."""

    client: Any
    run: Callable[[Any], Any]
    read: Callable[[Any], None]


def say(**found: object) -> None:
    print(json.dumps(found), flush=True)


def heard() -> str:
    """The next line of standard input; empty after the last."""
    return sys.stdin.readline()


def interrupted(work: Callable[[], object]) -> dict[str, object]:
    """Whether KeyboardInterrupt ended it, and when."""
    try:
        work()
    except KeyboardInterrupt:
        came = True
    else:
        came = False
    return {"interrupted": came, "ended": time.monotonic()}


def read(stream: Any) -> None:
    while not next(stream).text:
        pass
    say(at=FIRST)
    for _ in stream:
        pass


async def read_async(stream: Any) -> None:
    while not (await anext(stream)).text:
        pass
    say(at=FIRST)
    async for _ in stream:
        pass


@contextmanager
def in_threads(url: str) -> Iterator[ProgramClient]:
    with Client(url) as client:
        yield ProgramClient(client, lambda answer: answer, read)


@contextmanager
def in_asyncio(url: str) -> Iterator[ProgramClient]:
    """Its loop does not run between two steps. No task may be left."""

    async def tasks() -> set[asyncio.Task[Any]]:
        return asyncio.all_tasks()

    async def awaited(answer: Any) -> Any:
        return await answer

    with asyncio.Runner() as runner:
        before = runner.run(tasks())
        client = AsyncClient(url)
        yield ProgramClient(
            client, lambda answer: runner.run(awaited(answer)), lambda stream: runner.run(read_async(stream))
        )
        runner.run(client.close())
        runner.run(no_task_left(before))


def answers(caller: ProgramClient) -> None:
    """Three are interrupted: a stream that is closed then, one that is forgotten, and a whole one."""
    client, run, read_on = caller
    run(client.generate(PROMPT, max_tokens=1))
    threads = set(threading.enumerate())

    stream = client.stream(PROMPT, max_tokens=LONG)
    found = interrupted(lambda: read_on(stream))
    began = time.monotonic()
    run(stream.close())
    say(**found, closing=time.monotonic() - began, text=stream.text, whole=stream.generation is not None)
    heard()
    say(more_threads=[thread.name for thread in set(threading.enumerate()) - threads])
    heard()

    found = interrupted(lambda: read_on(client.stream(PROMPT, max_tokens=LONG)))
    gc.collect()
    say(**found)
    heard()

    say(**interrupted(lambda: run(client.generate(PROMPT, max_tokens=LONG))))
    heard()

    answer = run(client.generate(PROMPT, max_tokens=4))
    say(text=answer.text, used=answer.usage is not None)
    heard()


def many(url: str) -> None:
    """Many whole ones of which none comes are interrupted; then a line of standard input is asked for, if there is one.

    Then no thread of the many may be left. Calls that are stuck may hold theirs until the client is closed: a server
    that never answered is asked for nothing more.
    """
    with Client(url) as client:
        say(**interrupted(lambda: list(client.generate_many([WAIT] * 4, concurrency=2))))
        if prompt := heard():
            wait_until(no_thread_of_many)
            say(text=client.generate(prompt.strip()).text)
    wait_until(no_thread_of_many)


def no_thread_of_many() -> bool:
    return not any(thread.name == "inflight_client call" for thread in threading.enumerate())


def main() -> None:
    what, url = sys.argv[1:]
    faulthandler.dump_traceback_later(LONGEST, exit=True)
    if what == "many":
        many(url)
        return
    with (
        # What gRPC's library keeps of a call whose message an interrupt lost goes with the process.
        nullcontext() if what == "grpc-threads" else nothing_left(),
        in_asyncio(url) if what.endswith("asyncio") else in_threads(url) as caller,
    ):
        answers(caller)


if __name__ == "__main__":
    main()
