"""A thread that goes on whatever its turns meet."""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue

from inflight.runtime.background_loop import BackgroundLoop

SOON = 30


def test_what_turns_raise_is_told_once_for_each_type_and_ends_nothing() -> None:
    errors = [ValueError("one\nline"), KeyError("k"), ValueError("another"), OSError("gone")]
    turns: SimpleQueue[int] = SimpleQueue()
    reports: list[str] = []

    def turn() -> None:
        if errors:
            raise errors.pop(0)
        turns.put(1)

    thread = BackgroundLoop("a-thread", turn, "it failed", reports.append)
    thread.start()
    for _ in range(3):
        turns.get(timeout=SOON)
    thread.close()
    assert reports == ["it failed: ValueError: one line", "it failed: KeyError: 'k'", "it failed: OSError: gone"]


def test_a_turn_that_always_fails_takes_no_processor() -> None:
    turns = 0

    def turn() -> None:
        nonlocal turns
        turns += 1
        raise ValueError

    thread = BackgroundLoop("a-thread", turn, "it failed", lambda line: None)
    began = time.monotonic()
    thread.start()
    threading.Event().wait(0.3)
    thread.close()
    # It pauses for a twentieth of a second each time, and not at all it would make a million turns.
    assert turns < 5 + 30 * (time.monotonic() - began)


def test_close_ends_a_turn_that_waits_and_a_pause() -> None:
    wake = threading.Event()
    waits = BackgroundLoop("waits", wake.wait, "it failed", print)
    pauses = BackgroundLoop("pauses", lambda: pauses.pause(3600), "it failed", print)
    waits.start()
    pauses.start()
    waits.close(wake=wake.set)
    pauses.close()
    assert not {"waits", "pauses"} & {thread.name for thread in threading.enumerate()}


def test_an_attempt_says_whether_it_was_done() -> None:
    reports: list[str] = []
    thread = BackgroundLoop("a-thread", lambda: None, "it failed", reports.append)
    assert thread.attempt(lambda: None)
    assert not thread.attempt(lambda: 1 / 0)
    assert reports == ["it failed: ZeroDivisionError: division by zero"]
