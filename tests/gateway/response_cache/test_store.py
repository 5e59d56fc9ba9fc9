"""The file of the response cache: bounded, shared, and never more than a miss if it is damaged, full or killed."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from inflight.common.child_process import python_module
from inflight.gateway.response_cache.store import Entry, ResponseStore, clear

DAY = 86_400.0
LOG = "inflight.gateway"


def entry(number: int, size: int = 100) -> Entry:
    return Entry(f"{number} ".encode() * (size // 2), {"x-inflight-tool-call-parser": "unknown"}, ("stop", "length"))


def request(number: int) -> bytes:
    return f"request {number}".encode()


def open_store(path: Path, max_bytes: int = 10**8, max_age: float = DAY) -> ResponseStore:
    return ResponseStore(path / "responses.sqlite", max_bytes, max_age)


async def put(store: ResponseStore, *numbers: int, size: int = 100) -> None:
    for number in numbers:
        _, generation = await store.find(request(number), DAY)
        if generation is not None:
            await store.keep(request(number), entry(number, size), generation)


async def found(store: ResponseStore, *numbers: int, max_age: float = DAY) -> list[int]:
    there = [(number, (await store.find(request(number), max_age))[0]) for number in numbers]
    assert all(each.wire.startswith(str(number).encode()) for number, each in there if each)
    return [number for number, each in there if each]


def test_an_entry_is_found_as_it_was_kept_by_every_process_until_it_is_too_old(tmp_path: Path) -> None:
    store, other = open_store(tmp_path), open_store(tmp_path, max_age=0.05)

    async def run() -> None:
        await put(store, 1)
        assert (await other.find(request(1), 60))[0] == entry(1)
        assert await found(store, 1, max_age=0) == []
        assert await found(store, 2) == []
        await asyncio.sleep(0.06)
        await put(other, 2)  # removes what is too old
        assert await found(store, 1, 2) == [2]

    asyncio.run(run())
    assert (tmp_path / "responses.sqlite").stat().st_mode & 0o077 == 0
    store.close()
    other.close()


def test_the_oldest_entries_make_room_and_the_file_keeps_its_bound(tmp_path: Path) -> None:
    store = open_store(tmp_path, max_bytes=2_000_000)

    async def run() -> None:
        await put(store, *range(100), size=100_000)
        kept = await found(store, *range(100))
        assert kept == list(range(kept[0], 100))
        assert 5 <= len(kept) <= 20
        await put(open_store(tmp_path, max_bytes=1), 100)
        assert await found(store, *range(101)) == []

    asyncio.run(run())
    assert (tmp_path / "responses.sqlite").stat().st_size < 3_000_000


def test_clearing_also_forgets_what_is_being_computed(tmp_path: Path) -> None:
    store = open_store(tmp_path)

    async def run() -> None:
        await put(store, 1, 2)
        _, before = await store.find(request(3), DAY)
        assert clear(store.path) == 2
        assert before is not None
        await store.keep(request(3), entry(3), before)
        assert await found(store, 1, 2, 3) == []
        await put(store, 3)
        assert await found(store, 3) == [3]

    asyncio.run(run())


def overwrite(path: Path) -> None:
    path.write_bytes(os.urandom(50_000))


def flip(path: Path) -> None:
    """Change one byte of a stored answer."""
    with sqlite3.connect(path) as database:
        (wire,) = database.execute("SELECT wire FROM entries").fetchone()
        database.execute("UPDATE entries SET wire = ?", (wire[:9] + b"x" + wire[10:],))


def retype(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("UPDATE entries SET facts = 7")


def exchange(path: Path) -> None:
    """Give a digest the request of another one, as if both had the same digest."""
    with sqlite3.connect(path) as database:
        database.execute("UPDATE entries SET request = 'other'")


@pytest.mark.parametrize("damage", [overwrite, flip, retype, exchange])
def test_a_damaged_file_has_no_entry(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    store = open_store(tmp_path)
    asyncio.run(put(store, 1))
    store.close()
    damage(store.path)
    assert asyncio.run(found(open_store(tmp_path), 1)) == []


def test_what_fails_is_logged_once_and_a_replaced_file_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path)
    asyncio.run(put(store, 1))
    os.rename(store.path, tmp_path / "moved")
    asyncio.run(put(open_store(tmp_path), 2))
    for _ in range(3):
        assert asyncio.run(found(store, 1, 2)) == []
    assert [each.name for each in caplog.records] == [LOG]
    assert str(store.path) in caplog.text


def test_a_full_disk_loses_new_entries_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(tmp_path)
    asyncio.run(put(store, 1))
    limits, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        asyncio.run(put(store, 2, 3, size=200_000))
        assert asyncio.run(found(store, 1, 2, 3)) == [1]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert len(caplog.records) == 1
    asyncio.run(put(store, 4))
    assert asyncio.run(found(store, 1, 4)) == [1, 4]


@pytest.mark.parametrize("kills", [2, pytest.param(30, marks=pytest.mark.slow)])
def test_a_killed_process_loses_at_most_the_entry_that_it_wrote(tmp_path: Path, kills: int) -> None:
    source, first = random.Random(5), 0
    for _ in range(kills):
        command = [sys.executable, *python_module(__name__)[1:], str(tmp_path), str(first)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.getcwd()}) as writer:
            assert writer.stdout is not None
            lines = [writer.stdout.readline()]
            time.sleep(source.uniform(0.0, 0.3))
            writer.kill()
            lines += writer.stdout.read().splitlines()
        written = [int(line) for line in lines if line]
        store = open_store(tmp_path)
        assert asyncio.run(found(store, *written)) == written
        store.close()
        with sqlite3.connect(store.path) as database:
            assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            (first,) = database.execute("SELECT count(*) FROM entries").fetchone()
        assert first - written[-1] in (1, 2)  # 2: it was killed between writing an entry and saying so


def write_for_ever(directory: Path, first: int) -> None:
    async def run() -> None:
        store, number = open_store(directory, max_bytes=10**9), first
        while True:
            await put(store, number, size=50_000)
            print(number, flush=True)
            number += 1

    asyncio.run(run())


if __name__ == "__main__":
    write_for_ever(Path(sys.argv[1]), int(sys.argv[2]))
