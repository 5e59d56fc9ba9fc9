"""The queue's order, whatever is pushed, taken out and late."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from inflight.runtime.engine.request_queue import RequestQueue, ScheduledRequest
from inflight.runtime.messages import GenerationRequest


def entry_of(handle: int, priority: int = 0, deadline_ns: int | None = None) -> ScheduledRequest:
    request = GenerationRequest((5,), 1, priority=priority, deadline_ns=deadline_ns)
    return ScheduledRequest(handle, request, lambda event: None, kv_blocks=1, arrival_ns=0)


def queue_of(*entries: ScheduledRequest) -> RequestQueue:
    queue = RequestQueue()
    for entry in entries:
        queue.push(entry)
    return queue


def handles(queue: RequestQueue) -> list[int]:
    return [entry.handle for entry in queue]


def test_higher_priorities_come_first_and_the_same_in_order_of_arrival() -> None:
    queue = queue_of(entry_of(9, 0), entry_of(3, 5), entry_of(7, -1), entry_of(1, 5), entry_of(2, 0))
    assert handles(queue) == [3, 1, 9, 2, 7]


def test_what_is_taken_out_is_gone_and_what_is_not_there_is_none() -> None:
    queue = queue_of(entry_of(1), entry_of(2, deadline_ns=50), entry_of(3))
    removed = queue.remove(2)
    assert removed is not None
    assert removed.handle == 2
    assert queue.remove(2) is None
    assert handles(queue) == [1, 3]
    assert list(queue.pop_expired(1000)) == []
    assert not queue.has_deadlines


def test_the_late_are_taken_out_the_earliest_deadline_first() -> None:
    queue = queue_of(
        entry_of(1, deadline_ns=50), entry_of(2), entry_of(3, 9, deadline_ns=40), entry_of(4, deadline_ns=51)
    )
    assert [entry.handle for entry in queue.pop_expired(50)] == [3, 1]
    assert handles(queue) == [2, 4]
    assert queue.has_deadlines


operations = st.lists(
    st.tuples(st.just("push"), st.integers(-2, 2), st.none() | st.integers(1, 20))
    | st.tuples(st.just("remove"), st.integers(0, 30), st.none())
    | st.tuples(st.just("late"), st.integers(0, 20), st.none()),
    max_size=60,
)


@given(operations=operations)
@settings(max_examples=4 * settings().max_examples, deadline=None)
def test_it_is_what_sorting_would_give(operations: list[tuple[str, int, int | None]]) -> None:
    queue, waiting = RequestQueue(), list[ScheduledRequest]()
    for number, (operation, value, deadline) in enumerate(operations):
        if operation == "push":
            waiting.append(entry_of(number, value, deadline))
            queue.push(waiting[-1])
        elif operation == "remove":
            expected = next((entry for entry in waiting if entry.handle == value), None)
            assert queue.remove(value) is expected
            waiting = [entry for entry in waiting if entry is not expected]
        else:
            late = [entry for entry in waiting if (entry.request.deadline_ns or 99) <= value]
            assert {entry.handle for entry in queue.pop_expired(value)} == {entry.handle for entry in late}
            waiting = [entry for entry in waiting if entry not in late]
        assert handles(queue) == [entry.handle for entry in sorted(waiting, key=lambda one: -one.request.priority)]
        assert len(queue) == len(waiting)
