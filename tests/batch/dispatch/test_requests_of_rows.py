"""Rows that are embedded or classified share requests, and each has its own end."""

from __future__ import annotations

import asyncio

import pytest
from inflight_client import InflightError

from inflight.batch.dispatch import endpoint
from inflight.batch.errors import BatchError
from inflight.batch.job.rows import ClassifyRequest, EmbedRequest, RerankRequest, RowRequest
from inflight.batch.job.spec import EncodeSpec
from tests.batch.scripted_backend import DispatchRun, ListFeed, ScriptedBackend, echo
from tests.fixtures.waiting import wait_until_async

EMBED = EncodeSpec(task="embed")


def embed(text: str) -> EmbedRequest:
    return EmbedRequest((text,))


async def test_rows_that_wait_are_sent_together() -> None:
    server = ScriptedBackend()
    feed = ListFeed([f"text {n}" for n in range(200)], request=embed)
    run = await DispatchRun([server], feed, encode=EMBED, texts_per_request=16, concurrency=2).run()
    assert len(run.answers) == 200
    assert set(run.attempts.values()) == {1}
    assert max(len(group) for group in server.groups) == 16
    assert len(server.groups) <= 200 / 16 + 5


@pytest.mark.parametrize(
    "requests",
    [
        [EmbedRequest(("a",)), EmbedRequest(("b",), dimensions=4), EmbedRequest(("c",), "query")],
        [EmbedRequest(("a",)), EmbedRequest(("b", "c", "d", "e"))],
        [ClassifyRequest("a"), ClassifyRequest("b", truncate=True)],
        [RerankRequest("a", ("x", "y")), RerankRequest("b", ("x",))],
        [EmbedRequest(("a" * 40_000,)), EmbedRequest(("b" * 40_000,))],
    ],
)
async def test_what_does_not_go_together_is_sent_apart(requests: list[RowRequest]) -> None:
    left = iter(requests)
    server = ScriptedBackend()
    feed = ListFeed(map(str, range(len(requests))), request=lambda _: next(left))
    run = await DispatchRun([server], feed, encode=EMBED, texts_per_request=4, concurrency=1).run()
    assert len(run.answers) == len(requests) == len(server.groups)


async def test_a_refused_text_fails_alone() -> None:
    async def behaviour(server: ScriptedBackend, text: str) -> str | InflightError:
        return InflightError("it is too long", "prompt_too_long") if text == "text 7" else await echo(server, text)

    server = ScriptedBackend(behaviour)
    run = await DispatchRun([server], ListFeed([f"text {n}" for n in range(20)], request=embed), encode=EMBED).run()
    assert run.errors == {7: "prompt_too_long"}
    assert len(run.answers) == 19
    assert len(server.groups) == 1


async def test_texts_of_one_request_that_are_refused_without_a_code_cost_one_probe() -> None:
    """The others have their answers before it."""
    before_probe: list[int] = []

    async def behaviour(server: ScriptedBackend, text: str) -> str | InflightError:
        if text == "Hello":
            before_probe.append(len(run.answers))
        odd = text.endswith(("1", "3", "5"))
        return InflightError("it is odd", "invalid_request") if odd else await echo(server, text)

    server = ScriptedBackend(behaviour)
    server.group_ends = ()
    run = DispatchRun([server], ListFeed([f"text {n}" for n in range(20)], request=embed), encode=EMBED)
    await run.run()
    assert run.errors == dict.fromkeys((1, 3, 5, 11, 13, 15), "invalid_request")
    assert len(server.groups[0]) == 20
    assert server.groups[1:] == [["Hello"]]
    assert before_probe == [14]


async def test_rows_that_are_done_are_not_sent_again_where_their_server_is_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is rejected while a probe is in flight, and another server takes the row that the probe was for."""
    monkeypatch.setattr(endpoint, "_BUILD_SECONDS", 0.05)
    monkeypatch.setattr(endpoint, "_IDLE_TIMEOUT", 0.05)

    async def behaviour(server: ScriptedBackend, text: str) -> str | InflightError:
        if text == "Hello":
            server.model = "two"
            other.is_ready = True
            await asyncio.sleep(600)
        return InflightError("it is odd", "invalid_request") if text == "text 7" else await echo(server, text)

    def check(build: str) -> None:
        if build == "two":
            raise BatchError("it is another model", "job_mismatch")

    server, other = ScriptedBackend(behaviour), ScriptedBackend(name="other")
    server.group_ends, other.is_ready = (), False
    feed = ListFeed([f"text {n}" for n in range(20)], request=embed)
    run = await DispatchRun([server, other], feed, check, encode=EMBED).run()
    assert len(server.groups[0]) == 20
    assert other.asked == ["text 7"]
    assert len(run.answers) == 20


@pytest.mark.parametrize("code", ["invalid_request", "deadline_exceeded"])
async def test_a_request_that_fails_as_a_whole_is_sent_text_by_text(code: str) -> None:
    async def behaviour(server: ScriptedBackend, text: str) -> str | InflightError:
        return InflightError("it is odd", code) if text == "text 7" else await echo(server, text)

    feed = ListFeed([f"text {n}" for n in range(20)], request=embed)
    run = await DispatchRun([ScriptedBackend(behaviour)], feed, encode=EMBED, max_attempts=1).run()
    assert run.errors == {7: code}
    assert len(run.answers) == 19


async def test_a_text_that_crashes_the_engine_is_found_among_those_of_its_request() -> None:
    async def behaviour(server: ScriptedBackend, text: str) -> str | InflightError:
        return InflightError("it died", "engine_died") if text == "text 7" else await echo(server, text)

    server = ScriptedBackend(behaviour)
    feed = ListFeed([f"text {n}" for n in range(20)], request=embed)
    run = await DispatchRun([server], feed, encode=EMBED, max_engine_crashes=1).run()
    assert run.errors == {7: "row_crashed_engine"}
    assert len(run.answers) == 19
    assert ["text 7"] in server.groups
    assert run.recorded.noted == [(7, 1)]


async def test_rows_of_a_request_that_was_cut_off_are_sent_again() -> None:
    failures = iter(["server_gone", "overloaded"])

    async def behaviour(server: ScriptedBackend, text: str) -> str | InflightError:
        code = next(failures, None)
        return await echo(server, text) if code is None else InflightError("no", code)

    feed = ListFeed([f"text {n}" for n in range(30)], request=embed)
    run = await DispatchRun([ScriptedBackend(behaviour)], feed, encode=EMBED, texts_per_request=8).run()
    assert len(run.answers) == 30
    assert not run.errors


async def test_a_run_that_is_stopped_ends_whole_requests() -> None:
    async def slow(server: ScriptedBackend, text: str) -> str | InflightError:
        await asyncio.sleep(600)
        return text

    server = ScriptedBackend(slow)
    run = DispatchRun([server], ListFeed([f"text {n}" for n in range(20)], request=embed), encode=EMBED)
    task = asyncio.create_task(run.dispatcher.run())
    await wait_until_async(lambda: len(server.asked) == 20)
    await run.dispatcher.drain(0.0)
    await task
    assert len(server.cancelled) == 20
    assert not run.attempts
