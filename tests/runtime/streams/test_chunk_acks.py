"""Keys travel from postprocessing to the engine's model, and to that one alone; and what goes with a chunk there."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from queue import Empty, SimpleQueue

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.common.request_error import RequestError
from inflight.runtime.streams.chunk_header import ChunkHeader
from inflight.runtime.streams.disconnect_detector import ChunkAckListener, ChunkAckSender, ack_socket_name
from inflight.runtime.streams.local_socket import connect
from tests.fixtures.errors import raises

MODEL = f"engine-of-test-{os.getpid()}"
SOON = 60
"""Seconds that a receipt may take at most, on a busy machine too."""

Receipts = SimpleQueue[Sequence[int]]


@pytest.fixture
def receipts() -> Receipts:
    return SimpleQueue()


@pytest.fixture
def listener(receipts: Receipts) -> Iterator[ChunkAckListener]:
    listener = ChunkAckListener(MODEL, receipts.put, print)
    yield listener
    listener.close()


@pytest.fixture
def sender() -> Iterator[ChunkAckSender]:
    sender = ChunkAckSender(MODEL)
    yield sender
    sender.close()


@pytest.mark.parametrize("keys", [[1], [2**63, 2**64 - 1], list(range(1, 65))])
@pytest.mark.usefixtures("listener")
def test_keys_arrive_together(keys: list[int], receipts: Receipts, sender: ChunkAckSender) -> None:
    sender.send(keys)
    assert receipts.get(timeout=SOON) == keys


@pytest.mark.usefixtures("listener")
def test_none_is_lost_however_many_come_at_once(receipts: Receipts, sender: ChunkAckSender) -> None:
    for key in range(1, 5001):
        sender.send([key])
    assert [receipts.get(timeout=SOON) for _ in range(5000)] == [[key] for key in range(1, 5001)]


@pytest.mark.usefixtures("listener")
def test_what_is_no_receipt_is_passed_over(receipts: Receipts, sender: ChunkAckSender) -> None:
    with connect(ack_socket_name(MODEL)) as garbling:
        for message in (b"x", b"seven b", b"nine byte", b"x" * 1001):
            garbling.send(message)
    sender.send([77])
    assert receipts.get(timeout=SOON) == [77]
    assert receipts.empty()


def test_a_model_that_is_loaded_anew_is_found_again(receipts: Receipts, sender: ChunkAckSender) -> None:
    for key in (5, 6):
        listener = ChunkAckListener(MODEL, receipts.put, print)
        sender.send([key])
        assert receipts.get(timeout=SOON) == [key]
        listener.close()


@pytest.mark.usefixtures("listener")
def test_two_models_of_a_server_do_not_hear_each_other(receipts: Receipts) -> None:
    others: Receipts = SimpleQueue()
    other, to_other = ChunkAckListener(f"{MODEL}-2", others.put, print), ChunkAckSender(f"{MODEL}-2")
    to_other.send([5])
    assert others.get(timeout=SOON) == [5]
    with pytest.raises(Empty):
        receipts.get(timeout=0.05)
    other.close()
    to_other.close()


def test_nobody_needs_to_listen(sender: ChunkAckSender) -> None:
    sender.send([5])


def test_close_ends_the_thread_and_frees_the_name(receipts: Receipts, sender: ChunkAckSender) -> None:
    for _ in range(3):
        ChunkAckListener(MODEL, receipts.put, print).close()
    assert "chunk-acks" not in {thread.name for thread in threading.enumerate()}
    sender.send([5])
    assert receipts.empty()


def test_a_receipt_that_fails_is_told_and_the_next_one_arrives(receipts: Receipts, sender: ChunkAckSender) -> None:
    reports: SimpleQueue[str] = SimpleQueue()

    def take(keys: Sequence[int]) -> None:
        if keys == [1]:
            raise KeyError("nobody knows\nit")
        receipts.put(keys)

    listener = ChunkAckListener(MODEL, take, reports.put)
    for key in (1, 1, 2):
        sender.send([key])
    assert receipts.get(timeout=SOON) == [2]
    assert reports.get(timeout=SOON).startswith("an acknowledgement of chunks was lost: KeyError: ")
    assert reports.empty(), "one line, not one for each"
    listener.close()


NUMBERS = st.integers(0, 2**31 - 1)


@given(st.integers(0, 2**64 - 1), NUMBERS, NUMBERS, st.lists(NUMBERS, max_size=8))
def test_what_is_packed_comes_out_again(key: int, following: int, dropped: int, context_ids: list[int]) -> None:
    context = ChunkHeader(key, following, dropped, context_ids)
    tensor = context.to_tensor()
    assert (tensor.dtype, tensor.shape) == (np.int32, (1, 4 + len(context_ids)))
    assert ChunkHeader.from_row(tensor[0]) == context


@pytest.mark.parametrize("values", [[], [1], [0, 0, 0], [1, 2, -1, 0], [1, 2, 0, -5], [1, 2, 0, 0, -7], [0] * 65])
def test_what_the_engine_never_sends_is_refused(values: list[int]) -> None:
    with raises(RequestError, "invalid_request", naming="CHUNK_HEADER"):
        ChunkHeader.from_row(np.array(values, np.int32))
