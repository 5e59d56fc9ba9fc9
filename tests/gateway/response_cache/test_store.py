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
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from inflight.common.child_process import python_module
from inflight.gateway.response_cache.store import Entry, ResponseStore, clear

DAY = 86_400.0


def request(number: int) -> bytes:
    return f"request {number}".encode()


def opened(path: Path, max_bytes: int = 10**8, max_age: float = DAY) -> ResponseStore:
    return ResponseStore(path / "responses.sqlite", max_bytes, max_age)


def entry(number: int, size: int = 100) -> Entry:
    """An entry that compressing does not make smaller."""
    return Entry(b"%d " % number + random.Random(number).randbytes(size), ("stop", "length"))


async def put(store: ResponseStore, *numbers: int, size: int = 100) -> None:
    for number in numbers:
        _, generation = await store.find(request(number), DAY)
        if generation is not None:
            await store.keep(request(number), entry(number, size), generation)


async def found(store: ResponseStore, *numbers: int, max_age: float = DAY) -> list[int]:
    there = [(number, (await store.find(request(number), max_age))[0]) for number in numbers]
    assert all(each.wire.startswith(b"%d " % number) for number, each in there if each)
    return [number for number, each in there if each]


def test_every_process_finds_an_entry_until_it_is_too_old(tmp_path: Path) -> None:
    async def run() -> None:
        store, other = opened(tmp_path), opened(tmp_path, max_age=0.05)
        await put(store, 1)
        assert (await other.find(request(1), DAY))[0] == entry(1)
        assert await found(store, 1, 2, max_age=0) == []
        await asyncio.sleep(0.06)
        assert await found(other, 1, max_age=0.05) == []
        await put(other, 2)  # removes what is too old
        assert await found(store, 1, 2) == [2]
        assert store.path.stat().st_mode & 0o077 == 0

    asyncio.run(run())


def test_the_oldest_entries_make_room_and_the_file_keeps_its_bound(tmp_path: Path) -> None:
    async def run() -> None:
        store = opened(tmp_path, max_bytes=2_000_000)
        await put(store, *range(100), size=100_000)
        kept = await found(store, *range(100))
        assert kept == list(range(kept[0], 100))
        assert len(kept) > 10
        assert store.path.stat().st_size < 3_000_000
        await put(opened(tmp_path, max_bytes=1), 100)
        assert await found(store, *range(101)) == []

    asyncio.run(run())


def test_clearing_also_forgets_what_is_being_computed(tmp_path: Path) -> None:
    async def run() -> None:
        store = opened(tmp_path)
        await put(store, 1, 2)
        _, before = await store.find(request(3), DAY)
        assert clear(store.path) == 2
        assert before is not None
        await store.keep(request(3), Entry(b"3 ", ()), before)
        assert await found(store, 1, 2, 3) == []
        await put(store, 3)
        assert await found(store, 3) == [3]

    asyncio.run(run())


def delete(folder: Path) -> None:
    for each in folder.glob("responses.sqlite*"):
        each.unlink()


def test_a_deleted_file_is_an_empty_one(tmp_path: Path) -> None:
    async def run() -> None:
        store, other = opened(tmp_path), opened(tmp_path)
        await put(store, 1)
        _, before = await other.find(request(2), DAY)
        assert before is not None
        delete(tmp_path)
        await other.keep(request(2), entry(2), before)
        assert await found(store, 1, 2) == []
        await put(store, 3)
        assert await found(other, 1, 2, 3) == [3]
        assert clear(store.path) == 1

    asyncio.run(run())


def test_what_was_being_computed_when_the_file_was_deleted_is_not_stored(tmp_path: Path) -> None:
    async def run() -> None:
        store = opened(tmp_path)
        for number in range(9):  # on most file systems a new file soon has the number of the deleted one
            _, before = await store.find(request(number), DAY)
            assert before is not None
            delete(tmp_path)
            await store.keep(request(number), entry(number), before)
            assert await found(store, number) == []

    asyncio.run(run())


def changed(path: Path, damage: Callable[[bytes], bytes]) -> None:
    with sqlite3.connect(path) as database:
        (content,) = database.execute("SELECT content FROM entries").fetchone()
        database.execute("UPDATE entries SET content = ?", (damage(content),))


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(os.urandom(50_000)),
        lambda path: changed(path, lambda content: content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]),
        lambda path: changed(path, lambda content: content[:20]),
        lambda path: changed(path, lambda content: b""),
        lambda path: changed(
            path, lambda content: zlib.compress(b"other\0stop\0wire")
        ),  # as if the digest were the same
    ],
    ids=["overwritten", "changed", "cut", "empty", "other request"],
)
def test_a_damaged_file_has_no_entry(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    store = opened(tmp_path)
    asyncio.run(put(store, 1))
    store.close()
    damage(store.path)
    assert asyncio.run(found(opened(tmp_path), 1)) == []


@contextmanager
def no_room_beyond(size: int) -> Iterator[None]:
    """Let no file become larger."""
    limits, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)


def test_a_full_disk_is_cleared_too(tmp_path: Path) -> None:
    store = opened(tmp_path)
    asyncio.run(put(store, 1, 2))
    with no_room_beyond(1000):
        assert clear(store.path) == 2
        assert not store.path.exists()
    assert asyncio.run(found(store, 1, 2)) == []
    asyncio.run(put(store, 3))
    assert asyncio.run(found(store, 3)) == [3]


def test_a_full_disk_loses_new_entries_alone_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(tmp_path)
    asyncio.run(put(store, 1))
    with no_room_beyond(100_000):
        asyncio.run(put(store, 2, 3, size=400_000))
        assert asyncio.run(found(store, 1, 2, 3)) == [1]
    (record,) = caplog.records
    assert str(store.path) in record.getMessage()
    asyncio.run(put(store, 4))
    assert asyncio.run(found(store, 1, 4)) == [1, 4]


@pytest.mark.parametrize("kills", [2, pytest.param(30, marks=pytest.mark.slow)])
def test_a_killed_process_loses_at_most_the_entry_that_it_wrote(tmp_path: Path, kills: int) -> None:
    source, first = random.Random(5), 0
    for _ in range(kills):
        command = python_module(__name__, str(tmp_path), str(first))
        with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.getcwd()}) as writer:
            assert writer.stdout is not None
            lines = [writer.stdout.readline()]
            time.sleep(source.uniform(0.0, 0.3))
            writer.kill()
            lines += writer.stdout.read().splitlines()
        written = [int(line) for line in lines]
        store = opened(tmp_path)
        assert asyncio.run(found(store, *written)) == written
        store.close()
        with sqlite3.connect(store.path) as database:
            assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            (first,) = database.execute("SELECT count(*) FROM entries").fetchone()
        assert first - written[-1] in (1, 2)  # 2: it was killed between writing an entry and saying so


async def write(directory: Path, number: int) -> None:
    store = opened(directory, max_bytes=10**9)
    while True:
        await put(store, number, size=50_000)
        print(number, flush=True)
        number += 1


if __name__ == "__main__":
    asyncio.run(write(Path(sys.argv[1]), int(sys.argv[2])))
