from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inflight.runtime.messages import RequestMetadata, RequestTimings
from inflight.runtime.triton.request_log import RequestLine, RequestLog
from tests.fixtures.waiting import wait_until, whole_lines

LINE = RequestLine(
    "id 1",
    RequestMetadata("team", "00-a", "0.1.0"),
    "stop",
    "",
    5,
    7,
    RequestTimings(10**9, 2 * 10**9, 3 * 10**9, 5 * 10**9),
)
SOON = 30.0


@pytest.fixture
def reports() -> list[str]:
    return []


@pytest.fixture
def open_log(tmp_path: Path, reports: list[str]) -> Iterator[Callable[[], RequestLog]]:
    opened: list[RequestLog] = []

    def make() -> RequestLog:
        opened.append(RequestLog(str(tmp_path / "requests.jsonl"), reports.append))
        return opened[-1]

    yield make
    for log in opened:
        log.close()


def test_a_line_tells_whose_answer_it_was_and_how_it_went(
    tmp_path: Path, open_log: Callable[[], RequestLog], reports: list[str]
) -> None:
    before = time.time()
    log = open_log()
    log.add(LINE)
    log.add(RequestLine("", None, "error", "engine_died", 5))
    log.close()
    first, second = whole_lines(tmp_path / "requests.jsonl")
    assert time.strftime("%Y-%m-%dT%H:%M", time.gmtime(before)) <= first.pop("time") < "9999"
    assert first == {
        "request_id": "id 1",
        "tenant": "team",
        "traceparent": "00-a",
        "reason": "stop",
        "code": "",
        "input_tokens": 5,
        "output_tokens": 7,
        "queue_seconds": 1.0,
        "first_token_seconds": 2.0,
        "total_seconds": 4.0,
        "client": "0.1.0",
    }
    assert (second["tenant"], second["code"], second["total_seconds"]) == ("", "engine_died", None)
    assert reports == []


def test_a_file_that_was_moved_is_made_anew(tmp_path: Path, open_log: Callable[[], RequestLog]) -> None:
    path = tmp_path / "requests.jsonl"
    log = open_log()
    log.add(LINE)
    wait_until(lambda: len(whole_lines(path)) == 1)
    path.rename(tmp_path / "requests.jsonl.1")
    log.add(LINE._replace(request_id="id 2"))
    wait_until(lambda: len(whole_lines(path)) == 1)
    assert whole_lines(path)[0]["request_id"] == "id 2"
    assert len(whole_lines(tmp_path / "requests.jsonl.1")) == 1


def test_a_full_disk_is_told_once_and_the_lines_come_whole_when_there_is_room(
    tmp_path: Path, open_log: Callable[[], RequestLog], reports: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    room = [25]
    write = os.write

    def scarce(file: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = write(file, data[: room[0]])
        room[0] -= count
        return count

    monkeypatch.setattr(os, "write", scarce)
    log = open_log()
    for number in range(3):
        log.add(LINE._replace(request_id=str(number)))
    wait_until(lambda: bool(reports))
    log.add(LINE._replace(request_id="3"))
    time.sleep(0.5)
    room[0] = 10**6
    path = tmp_path / "requests.jsonl"
    wait_until(lambda: path.read_text().count("\n") == 4)
    assert [line["request_id"] for line in whole_lines(path)] == ["0", "1", "2", "3"]
    (report,) = reports
    assert "can't be written" in report
    assert "No space left" in report


def test_who_logs_waits_for_no_disk(open_log: Callable[[], RequestLog], monkeypatch: pytest.MonkeyPatch) -> None:
    stuck, over = threading.Event(), threading.Event()

    def never_done(*_: object) -> int:
        stuck.set()
        over.wait(60)
        raise OSError(errno.EIO, "Input/output error")

    log = open_log()
    monkeypatch.setattr(os, "open", never_done)
    log.add(LINE)
    assert stuck.wait(SOON)
    for _ in range(1000):
        log.add(LINE)
    assert not over.is_set()
    over.set()
    monkeypatch.undo()
