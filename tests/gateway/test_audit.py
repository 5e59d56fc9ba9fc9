"""The audit log: what is found in a chain that was changed, what survives kills and full disks, and a line's values."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest
from inflight_client import InflightError

from inflight.gateway.app import Gateway
from inflight.gateway.audit import check
from inflight.gateway.audit import log as audit_log
from inflight.gateway.audit.chain import ROOT, AuditOptions, Chain, full_files, line_after
from inflight.gateway.audit.check import verify
from inflight.gateway.audit.log import AuditLog
from inflight.gateway.key_editing import add_key
from inflight.gateway.key_file import ApiKey
from inflight.gateway.settings import GatewaySettings
from inflight.openai_api.errors import ApiError
from tests.fixtures.errors import raises
from tests.fixtures.waiting import wait_until

Edit = Callable[[list[bytes]], list[bytes]]


def options(folder: Path, max_bytes: int = 10**9, keep: int | None = None) -> AuditOptions:
    return AuditOptions(folder / "audit.jsonl", max_bytes, keep)


def written(at: AuditOptions, count: int = 9, first: int = 0) -> list[bytes]:
    """Append lines, each by itself, and return those of the current file."""
    chain = Chain(at)
    for number in range(first, first + count):
        chain.append([b'{"event":"request","key":"app","input_tokens":2,"n":%d}' % number])
    return at.path.read_bytes().splitlines(keepends=True)


def rewritten(lines: list[bytes]) -> list[bytes]:
    """Lines with other content in a chain of their own."""
    text = b"".join(lines).replace(b'"app"', b'"spy"')
    with_hashes, last = [], ROOT
    for line in text.splitlines():
        body = json.loads(line)
        for name in ("line", "previous", "sha256"):
            del body[name]
        last, new = line_after(last, json.dumps(body).encode())
        with_hashes.append(new)
    return with_hashes


@pytest.mark.parametrize(
    ("edit", "row"),
    [
        (lambda lines: [*lines[:3], lines[3].replace(b'"n":3', b'"n":4'), *lines[4:]], 4),
        (lambda lines: [*lines[:-1], lines[-1].replace(b'"app"', b'"spy"')], 9),
        (lambda lines: [*lines[:3], *lines[4:]], 4),
        (lambda lines: lines[1:], 1),
        (lambda lines: [*lines[:3], lines[4], lines[3], *lines[5:]], 4),
        (lambda lines: [*lines[:4], lines[3], *lines[4:]], 5),
        (lambda lines: [*lines[:3], b"tea\n", *lines[3:]], 4),
        (lambda lines: [*lines[:3], lines[3][:20], *lines[4:]], 4),
        (lambda lines: [*rewritten(lines[:4]), *lines[4:]], 5),
    ],
    ids=["edited", "edited last", "removed", "removed first", "swapped", "repeated", "added", "cut", "rewritten"],
)
def test_a_changed_line_is_found(tmp_path: Path, edit: Edit, row: int) -> None:
    at = options(tmp_path)
    lines = written(at)
    assert not verify([at.path]).problem
    at.path.write_bytes(b"".join(edit(lines)))
    verdict = verify([at.path])
    assert verdict.problem
    assert (verdict.file, verdict.row) == (str(at.path), row)


@pytest.mark.parametrize("edit", [rewritten, lambda lines: lines[:-2]], ids=["all rewritten", "end removed"])
def test_what_a_chain_alone_can_t_show_is_found_by_a_noted_hash(tmp_path: Path, edit: Edit) -> None:
    at = options(tmp_path)
    lines = written(at)
    noted = verify([at.path]).sha256
    assert not verify([at.path], noted).problem
    at.path.write_bytes(b"".join(edit(lines)))
    assert not verify([at.path]).problem
    assert verify([at.path], noted).problem


def test_a_chain_continues_over_full_files_and_kept_ones_are_named(tmp_path: Path) -> None:
    at = options(tmp_path, max_bytes=1000, keep=2)
    written(at, 40)
    full = full_files(at.path)
    verdict = verify([at.path])
    assert (len(full), verdict.problem, verdict.last) == (2, "", verdict.first + verdict.lines - 1)
    assert 1 < verdict.first == verdict.removed_through + 1
    (link := tmp_path / "link").symlink_to(at.path)
    assert (verify([link]).problem, verify([link]).lines) == ("", verdict.lines)
    assert {path.stat().st_mode & 0o777 for path in (at.path, *(path for _, path in full))} == {0o600}
    full[0][1].unlink()  # by another than the gateway
    assert verify([at.path]).row == 1
    written(at, 1)
    full[1][1].write_bytes(full[1][1].read_bytes()[:-3])
    assert verify([full[1][1], at.path]).file == str(full[1][1])


def test_a_line_that_a_kill_cut_off_is_named_and_is_no_alarm(tmp_path: Path) -> None:
    at = options(tmp_path)
    lines = written(at)
    at.path.write_bytes(b"".join(lines)[:-40])
    verdict = verify([at.path])
    assert (verdict.problem, verdict.last, verdict.unfinished_bytes) == ("", 8, len(lines[-1]) - 40)
    written(options(tmp_path, max_bytes=1), 2)
    verdict = verify([at.path])
    assert (verdict.problem, verdict.recovered, verdict.last) == ("", [9], 11)
    assert full_files(at.path)[0][0] == 10


def test_a_file_that_is_renamed_while_it_is_read_is_no_alarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at = options(tmp_path, max_bytes=1000)
    written(at, 3)
    read = check._read

    def read_late(path: Path) -> Iterator[bytes]:
        if not full_files(at.path):
            written(at, 9)
        return read(path)

    monkeypatch.setattr(check, "_read", read_late)
    verdict = verify([at.path])
    assert (verdict.problem, verdict.lines) == ("", 12)


@pytest.mark.parametrize("change", ["removed", "emptied", "replaced", "replaced alike", "cut", "junk"])
def test_a_file_that_is_changed_while_a_process_writes_it_is_found(tmp_path: Path, change: str) -> None:
    at = options(tmp_path)
    chain = Chain(at)
    chain.append([b'{"n":%d}' % number for number in range(5)])
    content = at.path.read_bytes()
    if change.startswith("re"):
        at.path.unlink()
    if change.startswith("replaced"):
        written(at, 5 if change == "replaced alike" else 2)
    elif change != "removed":
        lines = content.splitlines(keepends=True)
        at.path.write_bytes({"emptied": b"", "cut": b"".join(lines[:3]), "junk": content + b"tea\n"}[change])
    chain.append([b'{"n":5}'])
    assert verify([at.path]).problem
    assert b'{"line":6,' in at.path.read_bytes()


PROCESS = """
import sys
from pathlib import Path
from inflight.gateway.audit import log
from inflight.gateway.audit.chain import AuditOptions
log._FLUSH_SECONDS, log.MAX_HELD_BYTES = 0.001, 5000
audit = log.AuditLog(AuditOptions(Path(sys.argv[1]), 20000))
while True:
    if audit.has_room:
        audit.add(b'{"event":"request","text":"%s"}' % (b"x" * 100))
"""


def test_processes_share_a_chain_and_kills_leave_it_whole(tmp_path: Path) -> None:
    at = options(tmp_path)

    def write_until_killed() -> None:
        running = [subprocess.Popen([sys.executable, "-c", PROCESS, str(at.path)]) for _ in range(2)]
        before = len(full_files(at.path))
        wait_until(lambda: len(full_files(at.path)) > before + 3)
        for each in running:
            each.kill()
            each.wait()

    for _ in range(3):
        write_until_killed()
    verdict = verify([at.path])
    assert (verdict.problem, verdict.first) == ("", 1)
    assert verdict.lines == verdict.last > 100


def test_lines_are_kept_while_the_disk_is_full_and_then_requests_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, "MAX_HELD_BYTES", 100)
    monkeypatch.setattr(audit_log, "_FLUSH_SECONDS", 0.01)
    at = options(tmp_path)
    before = b"".join(written(at, 1))
    log = AuditLog(at)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, limits[1]))
    try:
        log.check_room()
        log.add(b'{"text":"%s"}' % (b"x" * 100))
        with raises(ApiError, "audit_unavailable"):
            log.check_room()
        wait_until(lambda: log._problem)
        assert at.path.read_bytes() == before
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    wait_until(lambda: log.has_room)
    log.check_room()
    log.close()
    assert verify([at.path]).lines == 3
    assert json.loads(at.path.read_bytes().splitlines()[-1])["requests"] == 1


def test_a_full_log_grows_by_no_request_not_even_by_one_without_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, "MAX_HELD_BYTES", 0)
    add_key(tmp_path / "keys.json", ApiKey.new("app"))
    found = []

    async def send(message: MutableMapping[str, Any]) -> None:
        found.append(message.get("status"))

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def ask() -> None:
        keys, log = str(tmp_path / "keys.json"), str(tmp_path / "audit.jsonl")
        gateway = Gateway(GatewaySettings(("127.0.0.1:1",), key_file=keys, audit=log))
        for path in ("/v1/models", "/health"):
            await gateway({"type": "http", "method": "GET", "path": path, "headers": []}, receive, send)
        await gateway.pool.close()

    asyncio.run(ask())
    assert [status for status in found if status] == [503, 200]


def test_a_log_has_one_gateway_and_no_other_file_is_touched(tmp_path: Path) -> None:
    at = options(tmp_path)
    lock = at.lock()
    with raises(InflightError, "audit_unusable"):
        at.lock()
    os.close(lock)
    os.close(at.lock())
    notes = tmp_path / "notes"
    for content in (b"tea", b"tea\n", b"{}\n" * 300_000):
        notes.write_bytes(content)
        with raises(InflightError, "audit_unusable"):
            AuditOptions(notes, 1).lock()
        assert (notes.read_bytes(), notes.stat().st_mode & 0o777) == (content, 0o644)
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "missing" / "file"):
        with raises(InflightError, "audit_unusable"):
            AuditOptions(path, 1).lock()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["audit.jsonl", "audit.jsonl.lock", "notes", "pipe"]
