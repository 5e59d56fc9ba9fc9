"""What becomes of rows, whatever servers do."""

from __future__ import annotations

import asyncio

import pytest
from inflight_client import InflightError

from inflight.batch.dispatch import endpoint
from inflight.batch.errors import BatchError
from tests.batch.scripted_backend import Behaviour, DispatchRun, ListFeed, ScriptedBackend, echo
from tests.fixtures.errors import raises
from tests.fixtures.waiting import wait_until_async

PROMPTS = [f"prompt {number}" for number in range(50)]


def failing_first(times: int, code: str) -> Behaviour:
    """Every prompt fails so many times."""

    async def behave(server: ScriptedBackend, prompt: str) -> str | InflightError:
        await asyncio.sleep(0)
        return InflightError("not now", code) if server.asked.count(prompt) <= times else prompt

    return behave


async def steady(server: ScriptedBackend, prompt: str) -> str | InflightError:
    await asyncio.sleep(0.02)
    return prompt


async def test_each_row_is_answered_once_whoever_answers() -> None:
    servers = [ScriptedBackend(name="a"), ScriptedBackend(name="b")]
    asked = await DispatchRun(servers, ListFeed(PROMPTS), concurrency=4).run()
    assert asked.answers == dict(enumerate(PROMPTS))
    assert set(asked.attempts.values()) == {1}
    assert all(0 < server.most <= 4 for server in servers)
    assert sorted(servers[0].asked + servers[1].asked) == sorted(PROMPTS)


async def test_a_job_without_rows_ends() -> None:
    assert (await DispatchRun([ScriptedBackend()], ListFeed([])).run()).answers == {}


async def test_what_may_pass_is_tried_again_and_then_given_up() -> None:
    server = ScriptedBackend(failing_first(1, "deadline_exceeded"))
    asked = await DispatchRun([server], ListFeed(PROMPTS[:3]), max_attempts=2).run()
    assert asked.answers == dict(enumerate(PROMPTS[:3]))
    assert set(asked.attempts.values()) == {2}
    server = ScriptedBackend(failing_first(9, "answer_damaged"))
    asked = await DispatchRun([server], ListFeed(PROMPTS[:3]), max_attempts=2).run()
    assert asked.errors == dict.fromkeys(range(3), "answer_damaged")
    assert set(asked.attempts.values()) == {2}


async def test_a_row_that_keeps_failing_is_named_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_RETRY_WAIT_INITIAL", 0.001)
    asked = await DispatchRun([ScriptedBackend(failing_first(6, "answer_damaged"))], ListFeed(PROMPTS[:3])).run()
    assert asked.answers == dict(enumerate(PROMPTS[:3]))
    (message,) = (each for each in asked.messages if each.startswith("Row "))
    assert "not now" in message


async def test_what_fails_again_is_not_tried_again() -> None:
    server = ScriptedBackend(failing_first(9, "prompt_too_long"))
    asked = await DispatchRun([server], ListFeed(PROMPTS)).run()
    assert asked.errors == dict.fromkeys(range(50), "prompt_too_long")
    assert len(server.asked) == 50


async def test_overload_is_no_failure_of_a_row_and_halves_what_is_in_flight() -> None:
    asked = DispatchRun([server := ScriptedBackend()], ListFeed(PROMPTS), max_attempts=1, concurrency=16)

    async def at_most_three(self: ScriptedBackend, prompt: str) -> str | InflightError:
        crowded = len(self.together[-1]) > 3
        await asyncio.sleep(0.001)
        return InflightError("full", "overloaded") if crowded else prompt

    server.behaviour = at_most_three
    await asked.run()
    assert asked.answers == dict(enumerate(PROMPTS))
    assert max(map(len, server.together[-20:])) <= 3
    assert sum(asked.attempts.values()) == len(server.asked) > 50


@pytest.mark.parametrize("code", ["server_gone", "server_unreachable", "engine_restarting", "model_not_ready"])
async def test_the_rows_of_a_lost_server_go_to_the_others(code: str) -> None:
    async def lost(server: ScriptedBackend, prompt: str) -> str | InflightError:
        await asyncio.sleep(0.001)
        if len(server.asked) > 5:
            server.model = InflightError("lost", "server_unreachable")
            return InflightError("lost", code)
        return prompt

    # Suspects of a server that stays away are another's business only after a while.
    servers = [ScriptedBackend(lost, name="a"), ScriptedBackend(steady, name="b")]
    asked = DispatchRun(servers, ListFeed(PROMPTS), concurrency=4)
    asked.dispatcher._endpoints[0].health.is_unavailable = lambda now: True  # type: ignore[method-assign]
    await asked.run()
    assert asked.answers == dict(enumerate(PROMPTS))
    assert [server.up for server in asked.dispatcher.servers()] == [False, True]
    assert any(sentence.startswith("a does not answer;") for sentence in asked.messages)


async def test_a_server_that_comes_back_goes_on() -> None:
    async def lost_once(server: ScriptedBackend, prompt: str) -> str | InflightError:
        await asyncio.sleep(0.001)
        if len(server.asked) == 5:
            server.is_ready = False
            asyncio.get_running_loop().call_later(0.5, setattr, server, "is_ready", True)
        return prompt if server.is_ready else InflightError("gone", "server_gone")

    asked = await DispatchRun([ScriptedBackend(lost_once)], ListFeed(PROMPTS), concurrency=4).run()
    assert asked.answers == dict(enumerate(PROMPTS))
    assert "scripted answers." in asked.messages


async def test_the_pool_ends_where_nobody_answers_for_its_patience() -> None:
    server = ScriptedBackend()
    server.model = InflightError("no server answers there", "server_unreachable")
    with raises(BatchError, "server_unreachable", naming="1"):
        await DispatchRun([server], ListFeed(PROMPTS), server_wait_timeout=1.0).run()


async def test_endless_overload_ends_the_pool_too() -> None:
    with raises(BatchError, "server_unreachable"):
        server = ScriptedBackend(failing_first(10**6, "overloaded"))
        await DispatchRun([server], ListFeed(PROMPTS), server_wait_timeout=2.0).run()


@pytest.mark.parametrize("code", ["permission_denied", "model_not_found", "unsupported_deployment", "host_not_found"])
async def test_a_server_that_takes_no_row_at_all_fails_the_job_and_no_row(code: str) -> None:
    server = ScriptedBackend()
    server.model = InflightError("never", code)
    asked = DispatchRun([server], ListFeed(PROMPTS))
    with raises(BatchError, code, naming="never"):
        await asked.run()
    assert not asked.attempts
    assert not server.asked


async def test_a_server_that_refuses_in_the_middle_is_set_aside() -> None:
    async def refuse(server: ScriptedBackend, prompt: str) -> str | InflightError:
        await asyncio.sleep(0.001)
        if len(server.asked) < 5:
            return prompt
        server.model = InflightError("the key has run out", "permission_denied")
        return InflightError("the key has run out", "permission_denied")

    servers = [ScriptedBackend(refuse, name="a"), ScriptedBackend(steady, name="b")]
    asked = await DispatchRun(servers, ListFeed(PROMPTS), concurrency=2).run()
    assert asked.answers == dict(enumerate(PROMPTS))
    assert [sentence for sentence in asked.messages if "no longer used" in sentence] == [
        "a is no longer used: the key has run out"
    ]


@pytest.mark.parametrize("code", ["permission_denied", "job_mismatch"])
async def test_what_is_in_flight_at_a_server_that_is_set_aside_goes_to_the_others(
    monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setattr(endpoint, "_IDLE_TIMEOUT", 0.2)
    monkeypatch.setattr(endpoint, "_BUILD_SECONDS", 0.1)

    async def hang(server: ScriptedBackend, prompt: str) -> str | InflightError:
        if len(server.asked) < 4:
            await asyncio.sleep(3600)
        await asyncio.sleep(0.2)
        if code == "job_mismatch":
            server.model = "two"
            await asyncio.sleep(3600)
        server.model = InflightError("the key has run out", code)
        return server.model

    servers = [ScriptedBackend(hang, name="a"), ScriptedBackend(steady, name="b")]
    asked = await DispatchRun(servers, ListFeed(PROMPTS), bind_one, concurrency=4, server_wait_timeout=20.0).run()
    assert asked.answers == dict(enumerate(PROMPTS))
    assert servers[0].cancelled
    assert sum("a is no longer used" in sentence for sentence in asked.messages) == 1


def bind_one(build: str) -> None:
    if build != "one":
        raise BatchError("was started with another build", "job_mismatch")


async def test_another_model_gets_no_rows() -> None:
    servers = [ScriptedBackend(name="a"), ScriptedBackend(name="b", build="two")]
    asked = await DispatchRun(servers, ListFeed(PROMPTS), bind_one).run()
    assert asked.answers == dict(enumerate(PROMPTS))
    assert not servers[1].asked
    assert "b is no longer used: was started with another build" in asked.messages
    with raises(BatchError, "job_mismatch"):
        await DispatchRun([ScriptedBackend(build="two")], ListFeed(PROMPTS), bind_one).run()


async def test_another_model_that_is_there_after_a_loss_gets_no_rows() -> None:
    async def replaced(server: ScriptedBackend, prompt: str) -> str | InflightError:
        await asyncio.sleep(0.001)
        if len(server.asked) >= 5:
            server.model = "two"
            return InflightError("gone", "server_gone")
        return prompt

    asked = DispatchRun([server := ScriptedBackend(replaced)], ListFeed(PROMPTS), bind_one, concurrency=2)
    with raises(BatchError, "job_mismatch"):
        await asked.run()
    assert len(asked.answers) <= 4
    assert len(server.asked) <= 6


async def slow(server: ScriptedBackend, prompt: str) -> str | InflightError:
    await asyncio.sleep(0.3)
    return prompt


async def test_a_drain_finishes_what_is_in_flight_and_sends_nothing_more() -> None:
    asked = DispatchRun([server := ScriptedBackend(slow)], ListFeed(PROMPTS), concurrency=8)
    running = asyncio.create_task(asked.run())
    await wait_until_async(lambda: len(server.asked) == 8)
    await asked.dispatcher.drain(30.0)
    await running
    assert len(asked.answers) == len(server.asked) == 8
    assert not server.cancelled


async def test_a_drain_cancels_what_takes_too_long() -> None:
    async def never(server: ScriptedBackend, prompt: str) -> str | InflightError:
        await asyncio.sleep(3600)
        return prompt

    asked = DispatchRun([server := ScriptedBackend(never)], ListFeed(PROMPTS), concurrency=8)
    running = asyncio.create_task(asked.run())
    await wait_until_async(lambda: len(server.asked) == 8)
    await asked.dispatcher.drain(0.1)
    await running
    assert sorted(server.cancelled) == sorted(server.asked)
    assert not asked.attempts


async def test_a_stop_before_the_first_row_ends_at_once() -> None:
    asked = DispatchRun([server := ScriptedBackend()], ListFeed(PROMPTS))
    asked.dispatcher.stop()
    await asked.run()
    assert not server.asked


async def test_rows_that_wait_do_not_wait_for_a_feed_that_has_nothing() -> None:
    more = asyncio.Event()
    asked = DispatchRun([ScriptedBackend(failing_first(1, "answer_damaged"))], ListFeed(PROMPTS[:3], more))
    running = asyncio.create_task(asked.run())
    await wait_until_async(lambda: len(asked.answers) == 3)
    assert not running.done()
    more.set()
    await running


async def test_what_done_raises_ends_the_pool() -> None:
    asked = DispatchRun([ScriptedBackend(echo)], ListFeed(PROMPTS))

    def full(*values: object) -> None:
        raise BatchError("no room", "disk_full")

    asked.dispatcher._queue._on_row_done = full
    with raises(BatchError, "disk_full"):
        await asked.run()


@pytest.mark.parametrize(("takes", "priority", "limit"), [(True, -1, 8), (True, 0, 4), (False, -1, 4)])
async def test_a_share_is_used_where_the_priority_leaves_no_room_for_others(
    takes: bool, priority: int, limit: int
) -> None:
    server = ScriptedBackend()
    server.has_priorities = takes
    dispatcher = DispatchRun([server], ListFeed([]), concurrency=8).dispatcher
    dispatcher.set_pace(priority, 0.5)
    assert (dispatcher.servers()[0].concurrency_limit, server.priority) == (limit, priority)


async def test_what_the_feed_raises_ends_the_pool() -> None:
    class Broken(ListFeed):
        async def get(self) -> None:
            raise BatchError("the table is gone", "input_not_found")

    with raises(BatchError, "input_not_found"):
        await DispatchRun([ScriptedBackend()], Broken([])).run()


async def test_a_row_that_is_asked_again_is_in_flight_and_does_not_wait() -> None:
    async def slow_then(server: ScriptedBackend, prompt: str) -> str | InflightError:
        if server.asked.count(prompt) == 1:
            return InflightError("garbled", "answer_damaged")
        await asyncio.sleep(3600)
        return prompt

    def in_flight() -> int:
        return sum(server.in_flight for server in asked.dispatcher.servers())

    asked = DispatchRun([server := ScriptedBackend(slow_then)], ListFeed(PROMPTS[:3]))
    running = asyncio.create_task(asked.run())
    await wait_until_async(lambda: len(server.asked) >= 3)
    assert in_flight() + asked.dispatcher.pending_retries == 3
    await wait_until_async(lambda: len(server.asked) == 6)
    assert (in_flight(), asked.dispatcher.pending_retries) == (3, 0)
    await asked.dispatcher.drain(0.0)
    await running
