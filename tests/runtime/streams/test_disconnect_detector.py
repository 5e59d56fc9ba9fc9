"""A stream whose chunks are dropped is cancelled; one whose chunks are late is not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from queue import Empty, SimpleQueue

import pytest

from inflight.runtime.streams.disconnect_detector import ACK_TIMEOUT_SECONDS, DisconnectDetector

SOON = 60
"""Seconds that anything here may take at most, on a busy machine too."""


class Watched:
    """A watch, the handles that it cancels, and the probes that it sends."""

    def __init__(self) -> None:
        self.cancelled: SimpleQueue[int] = SimpleQueue()
        self.probes: SimpleQueue[int] = SimpleQueue()
        self.watch = DisconnectDetector(self.cancelled.put, self.probes.put, print)

    def send(self, key: int, handle: int) -> int:
        chunk = self.watch.next_chunk_key(key, handle)
        self.watch.mark_sent(key)
        return chunk

    def in_time(self, since: float) -> bool:
        """Whether this machine let no chunk become late since then; where it did, a probe was right."""
        return time.monotonic() - since < ACK_TIMEOUT_SECONDS

    def nobody_is_cancelled(self) -> bool:
        try:
            self.cancelled.get(timeout=5 * ACK_TIMEOUT_SECONDS)
        except Empty:
            return True
        return False


@pytest.fixture
def watched() -> Iterator[Watched]:
    watched = Watched()
    yield watched
    watched.watch.close()


def test_a_chunk_that_a_probe_overtook_was_dropped(watched: Watched) -> None:
    chunk = watched.send(100, 1)
    watched.watch.on_ack([chunk])
    watched.send(100, 1)
    while watched.cancelled.empty():
        watched.watch.on_ack([watched.probes.get(timeout=SOON)])
    assert watched.cancelled.get() == 1
    assert watched.nobody_is_cancelled()


def test_a_probes_receipt_may_come_after_the_next_probes(watched: Watched) -> None:
    watched.send(100, 1)
    first, *_ = (watched.probes.get(timeout=SOON) for _ in range(4))
    watched.watch.on_ack([first])
    assert watched.cancelled.get(timeout=SOON) == 1


def test_chunks_with_receipts_cause_no_probe(watched: Watched) -> None:
    in_time = True
    for _ in range(10):
        began = time.monotonic()
        watched.watch.on_ack([watched.send(100, 1), watched.send(200, 2)])
        in_time &= watched.in_time(began)
        time.sleep(ACK_TIMEOUT_SECONDS / 2)
    assert watched.probes.empty() or not in_time
    assert watched.nobody_is_cancelled()


def test_a_chunk_that_triton_has_not_taken_yet_is_not_late(watched: Watched) -> None:
    watched.watch.next_chunk_key(100, 1)
    with pytest.raises(Empty):
        watched.probes.get(timeout=5 * ACK_TIMEOUT_SECONDS)
    watched.watch.mark_sent(100)
    watched.probes.get(timeout=SOON)


def test_late_chunks_before_the_probe_are_only_late(watched: Watched) -> None:
    chunks = [watched.send(100, 1) for _ in range(3)]
    probe = watched.probes.get(timeout=SOON)
    watched.watch.on_ack([chunks[0], probe])  # the others were sent before the probe, but may just have been
    assert watched.nobody_is_cancelled()


def test_only_the_dropped_stream_is_cancelled(watched: Watched) -> None:
    watched.send(100, 1)
    alive = watched.send(200, 2)
    probe = watched.probes.get(timeout=SOON)
    watched.watch.on_ack([alive])
    watched.watch.on_ack([probe])
    assert watched.cancelled.get(timeout=SOON) == 1
    assert watched.nobody_is_cancelled()


def test_a_lost_receipt_is_made_good_by_the_next(watched: Watched) -> None:
    began = time.monotonic()
    watched.send(100, 1)
    watched.watch.on_ack([watched.send(100, 1)])
    in_time = watched.in_time(began)
    assert watched.nobody_is_cancelled()
    assert watched.probes.empty() or not in_time


def test_without_the_probes_receipt_nothing_is_known(watched: Watched) -> None:
    watched.send(100, 1)
    watched.probes.get(timeout=SOON)
    assert watched.nobody_is_cancelled()


def test_an_ended_stream_is_not_cancelled(watched: Watched) -> None:
    watched.send(100, 1)
    probe = watched.probes.get(timeout=SOON)
    watched.watch.end_stream(100)
    watched.watch.on_ack([probe])
    assert watched.nobody_is_cancelled()


def test_keys_and_probes_that_nobody_sent_are_passed_over(watched: Watched) -> None:
    watched.send(100, 1)
    watched.watch.on_ack([5, 0, 2**64 - 1])
    assert watched.nobody_is_cancelled()


def test_keys_near_the_largest_number_go_on_from_zero(watched: Watched) -> None:
    began = time.monotonic()
    keys = [watched.send(2**64 - 2, 1) for _ in range(3)]
    assert keys == [2**64 - 1, 0, 1]
    watched.watch.on_ack(keys)
    in_time = watched.in_time(began)
    assert watched.nobody_is_cancelled()
    assert watched.probes.empty() or not in_time


def test_a_probe_that_fails_is_told_and_the_next_ones_are_sent() -> None:
    probes: SimpleQueue[int] = SimpleQueue()
    cancelled: SimpleQueue[int] = SimpleQueue()
    reports: SimpleQueue[str] = SimpleQueue()
    failures = iter([1, 2])

    def probe(key: int) -> None:
        if next(failures, None):
            raise RuntimeError("postprocessing is not ready")
        probes.put(key)

    def cancel(handle: int) -> None:
        cancelled.put(handle)
        raise OSError("no engine")

    watch = DisconnectDetector(cancel, probe, reports.put)
    for key, handle in ((100, 1), (200, 2)):
        watch.next_chunk_key(key, handle)
        watch.mark_sent(key)
    while cancelled.qsize() < 2:
        watch.on_ack([probes.get(timeout=SOON)])
    told = [reports.get(timeout=SOON) for _ in range(2)]
    watch.close()
    assert {cancelled.get(), cancelled.get()} == {1, 2}
    assert "RuntimeError: postprocessing is not ready" in told[0]
    assert "OSError: no engine" in told[1]
    assert reports.empty()
