"""A history of what job processes of a queue promise: which records are on the disk, and which messages are settled."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from inflight.batch.dispatch.message_prefetcher import MessagePrefetcher
from inflight.batch.queues.jetstream import JetStreamQueue
from inflight.batch.queues.postgresql import TableQueue
from inflight.batch.queues.sqs import SqsQueue
from inflight.batch.state.line_file import LineFile

VARIABLE = "INFLIGHT_TEST_HISTORY"
POISON = "poison"
"""A prompt with which a job process dies as soon as it has it."""


def record(path: str) -> None:
    """Make this process write its history: a line of JSON before what it promises, and after what it has done."""
    out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(what: str, ids: Iterable[str]) -> None:
        os.write(out, json.dumps([what, os.getpid(), *ids]).encode() + b"\n")

    def wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
        inner = getattr(owner, name)
        setattr(owner, name, lambda *values: around(inner, *values))

    def sync(inner: Any, file: LineFile) -> None:
        inner(file)
        seen = getattr(file, "seen", None)
        if seen is not None and file.length > seen:
            note("synced", _ids(file.path, seen, file.length))
        file.seen = file.length  # type: ignore[attr-defined]

    def opened(inner: Any, file: LineFile, path: Path, committed: int) -> None:
        inner(file, path, committed)
        file.seen = committed  # type: ignore[attr-defined]

    def truncate(inner: Any, file: LineFile) -> None:
        if file.uncommitted_bytes:
            note("cut", _ids(file.path, file.length, None))
        inner(file)

    def settle(inner: Any, queue: Any, recorded: Any) -> Any:
        note("settled", [message.id for message, _ in recorded])
        return inner(queue, recorded)

    def settle_in(inner: Any, queue: Any, connection: Any, statuses: Any) -> Any:
        note("settled", statuses)
        return inner(queue, connection, statuses)

    def row(inner: Any, prefetcher: Any, message: Any) -> Any:
        if (message.values or {}).get("prompt") == POISON:
            os.kill(os.getpid(), signal.SIGKILL)
        return inner(prefetcher, message)

    wrap(LineFile, "__init__", opened)
    wrap(LineFile, "sync", sync)
    wrap(LineFile, "truncate", truncate)
    wrap(TableQueue, "_settle_in", settle_in)
    wrap(JetStreamQueue, "settle_messages", settle)
    wrap(SqsQueue, "settle_messages", settle)
    wrap(MessagePrefetcher, "_row", row)


def check(history: Path, files: Iterable[Path], sent: int) -> str:
    """Return what happened, by the history and the files of lines alone. AssertionError for a broken promise."""
    on_disk: set[str] = set()
    settled: Counter[str] = Counter()
    events: Counter[str] = Counter()
    for line in history.read_text().splitlines():
        what, _, *ids = json.loads(line)
        events[what] += 1
        if what == "synced":
            on_disk.update(ids)
        elif what == "cut":
            on_disk.difference_update(ids)
        else:
            assert on_disk.issuperset(ids), f"{set(ids) - on_disk} were settled before their records were on the disk"
            settled.update(ids)
    records = Counter(id for path in files for id in _ids(path, 0, None))
    assert len(records) == sent
    assert set(records.values()) == {1}, [id for id, times in records.items() if times > 1]
    assert settled.keys() == records.keys()
    again = sum(times > 1 for times in settled.values())
    return f"{sent} records; {dict(events)}; {again} messages came again after their record"


def _ids(path: Path, start: int, end: int | None) -> list[str]:
    """Of whole lines; of a torn one there is nothing to say."""
    lines = path.read_bytes()[start:end].split(b"\n")[:-1]
    return [str(json.loads(line)["id"]) for line in lines if line.startswith(b"{") and line.endswith(b"}")]
