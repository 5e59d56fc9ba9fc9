"""Quotas of API keys: exact for many clients and processes, refunded, and told in OpenAI's headers."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from inflight_client import InflightError
from prometheus_client import Gauge

from inflight.common.child_process import python_module
from inflight.deploy.server.server import Server
from inflight.gateway.admission_queue import Admission
from inflight.gateway.http import BodyMemory, Request
from inflight.gateway.key_editing import add_key, limit_key
from inflight.gateway.key_file import ApiKey, Quotas
from inflight.gateway.key_ring import Caller
from inflight.gateway.outcome import Outcome
from inflight.gateway.processes import GatewayProcesses
from inflight.gateway.quotas import KeyQuotas, QuotaLedger
from inflight.gateway.work import Attempt, run_work
from inflight.openai_api.errors import ApiError
from tests.fixtures.errors import raises
from tests.fixtures.gateway import openai_client, running_gateway
from tests.fixtures.gateway_requests import MODEL, get, post
from tests.fixtures.waiting import wait_until


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def key(**quotas: int) -> ApiKey:
    return ApiKey.new("app", quotas=Quotas(**quotas))


def test_requests_of_a_minute_are_counted_and_the_time_to_come_back_is_true(tmp_path: Path, clock: Clock) -> None:
    ledger, app = QuotaLedger(tmp_path / "quotas", clock), key(requests_per_minute=2)
    first = ledger.reserve(app, 5)
    assert first.headers["x-ratelimit-remaining-requests"] == "1"
    clock.now += 20
    ledger.reserve(app, 5)
    with raises(ApiError, "rate_limit_exceeded") as refused:
        ledger.reserve(app, 5)
    assert (refused.value.status, refused.value.headers["retry-after"]) == (429, "40")
    assert refused.value.headers["x-ratelimit-reset-requests"] == "40.000s"
    clock.now += 40
    ledger.reserve(app, 5)


def test_a_request_that_never_started_is_not_counted(tmp_path: Path, clock: Clock) -> None:
    ledger, app = QuotaLedger(tmp_path / "quotas", clock), key(requests_per_minute=1, tokens_per_minute=10)
    ledger.release(ledger.reserve(app, 10), None)
    ledger.reserve(app, 10)


@pytest.mark.parametrize("quota", ["tokens_per_minute", "tokens_per_day"])
def test_tokens_are_reserved_and_what_was_not_used_is_given_back(tmp_path: Path, clock: Clock, quota: str) -> None:
    ledger, app = QuotaLedger(tmp_path / "quotas", clock), key(**{quota: 100})
    held = ledger.reserve(app, 90)
    with raises(ApiError, "rate_limit_exceeded"):
        ledger.reserve(app, 11)
    ledger.release(held, 60)
    with raises(ApiError, "rate_limit_exceeded"):
        ledger.reserve(app, 41)
    ledger.reserve(app, 40)
    with raises(ApiError, "rate_limit_exceeded") as never:
        ledger.reserve(app, 101)
    assert never.value.headers == {"x-should-retry": "false"}


@pytest.mark.parametrize(
    ("outcome", "error", "used"),
    [
        ({"sent": True, "streamed": 3, "prompt_tokens": 8}, InflightError("late", "deadline_exceeded"), 11),
        ({"sent": True, "streamed": 9, "input_tokens": 8, "output_tokens": 4}, None, 12),
        ({"sent": True}, InflightError("gone", "server_gone"), 0),
    ],
    ids=["cut", "whole", "failed"],
)
def test_what_a_server_computed_of_a_cut_answer_counts(
    tmp_path: Path, outcome: dict[str, Any], error: Exception | None, used: int
) -> None:
    quotas, app = KeyQuotas(tmp_path / "quotas"), key(tokens_per_day=100)
    with suppress(InflightError), quotas.hold(app, 10, 50, Outcome(admitted=True, **outcome)):
        if error is not None:
            raise error
    ledger = QuotaLedger(quotas.path)
    with raises(ApiError, "rate_limit_exceeded"):
        ledger.reserve(app, 101 - used)
    ledger.reserve(app, 100 - used)


def test_the_tokens_of_a_client_that_leaves_count(tmp_path: Path) -> None:
    quotas, app = KeyQuotas(tmp_path / "quotas"), key(tokens_per_day=100)

    async def run() -> bool:
        streaming = asyncio.Event()

        async def receive() -> dict[str, Any]:
            await streaming.wait()
            return {"type": "http.disconnect"}

        async def respond(request: Request) -> None:
            request.outcome.sent, request.outcome.streamed = True, 3
            streaming.set()
            await asyncio.Event().wait()

        scope = {"method": "POST", "path": "/", "headers": []}
        request = Request(scope, receive, None, "id", 1, BodyMemory(1))  # type: ignore[arg-type]
        gauge, target = (
            Gauge("places", "", registry=None),
            SimpleNamespace(in_flight=0, ready=True, build=None, precision=None),
        )
        attempt = Attempt(target, "tea", Admission(lambda: 1, 1), gauge, 1, 10, 50, respond)
        return await run_work(iter([attempt]), request, Caller(key=app), time.monotonic() + 60, quotas, gauge)

    assert asyncio.run(run()) is False
    ledger = QuotaLedger(quotas.path)
    with raises(ApiError, "rate_limit_exceeded"):
        ledger.reserve(app, 100 - 13 + 1)
    ledger.reserve(app, 100 - 13)


def test_a_restart_keeps_the_tokens_of_the_day_and_forgets_what_ran(tmp_path: Path, clock: Clock) -> None:
    app = key(tokens_per_day=100, max_concurrent=1)
    first = QuotaLedger(tmp_path / "quotas", clock)
    first.reserve(app, 80)
    first.close()
    second = QuotaLedger(tmp_path / "quotas", clock)
    with raises(ApiError, "rate_limit_exceeded"):
        second.reserve(app, 21)
    second.reserve(app, 20)
    clock.now += 86400
    with raises(ApiError, "rate_limit_exceeded"):  # one is running still
        second.reserve(app, 1)


def test_processes_share_the_counts(tmp_path: Path) -> None:
    """Also while they open the file at the same time."""
    command = python_module("tests.gateway.test_quotas", str(tmp_path / "quotas"))
    processes = [
        subprocess.Popen(
            command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        )
        for _ in range(4)
    ]
    assert sum(int(process.communicate()[0]) for process in processes) == 100


GatewayWithKeys = tuple[GatewayProcesses, Path, dict[str, str]]


@pytest.fixture(scope="module")
def quota_gateway(hurried_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayWithKeys]:
    """With the file of its keys, and their texts."""
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    quotas = {
        "spender": Quotas(tokens_per_day=60),
        "holder": Quotas(max_concurrent=2),
        "counted": Quotas(requests_per_minute=1000, tokens_per_minute=9000),
    }
    keys = {name: add_key(path, ApiKey.new(name, quotas=each)) for name, each in quotas.items()}
    with running_gateway(hurried_server, key_file=str(path)) as gateway:
        yield gateway, path, keys


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    return client.completions.with_raw_response.create(model=MODEL, **{"prompt": "tea", "max_tokens": 5, **fields})


def test_parallel_clients_use_exactly_what_they_may(quota_gateway: GatewayWithKeys) -> None:
    gateway, _, keys = quota_gateway
    headers = {"authorization": f"Bearer {keys['spender']}"}
    ids = post(gateway, "/tokenize", {"prompt": "tea"}, headers).json["tokens"]
    with openai_client(gateway, api_key=keys["spender"]) as client:

        def spend(_: int) -> int:
            try:
                answer = ask(client, prompt=ids, extra_body={"ignore_eos": True}).parse()
            except openai.RateLimitError:
                return 0
            return int(answer.usage.total_tokens)

        with ThreadPoolExecutor(64) as pool:
            spent = [*pool.map(spend, range(64))]
        while more := spend(0):
            spent.append(more)
    assert sum(spent) == 60 // (len(ids) + 5) * (len(ids) + 5)


def test_requests_at_a_time_are_bounded_however_they_end(quota_gateway: GatewayWithKeys) -> None:
    gateway, _, keys = quota_gateway
    with openai_client(gateway, api_key=keys["holder"]) as client, ExitStack() as stack:

        def held() -> bool:
            messages: Any = [{"role": "user", "content": "tea"}]
            with suppress(openai.RateLimitError, openai.APIConnectionError, openai.InternalServerError):
                stream = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=1900, stream=True)
                stack.enter_context(stream)
                next(iter(stream))
                return True
            return False

        assert held()
        assert held()
        with pytest.raises(openai.RateLimitError) as refused:
            ask(client)
        assert refused.value.response.headers["retry-after"] == "1"
        stack.close()
        wait_until(held)
        wait_until(held)
        for worker in gateway._workers:
            os.kill(worker.pid, signal.SIGKILL)
        wait_until(held)


def test_headers_tell_what_is_left_and_a_quota_can_be_changed(quota_gateway: GatewayWithKeys) -> None:
    gateway, path, keys = quota_gateway
    with openai_client(gateway, api_key=keys["counted"]) as client:
        headers = ask(client).headers
        assert (headers["x-ratelimit-limit-requests"], headers["x-ratelimit-limit-tokens"]) == ("1000", "9000")
        assert headers["x-ratelimit-remaining-requests"] == "999"
        assert headers["x-ratelimit-remaining-tokens"] == str(9000 - 6)
        limit_key(path, "counted", Quotas())
        wait_until(lambda: "x-ratelimit-limit-requests" not in ask(client).headers)
    assert get(gateway, "/health").status == 200


if __name__ == "__main__":
    import sys

    ledger, app = QuotaLedger(Path(sys.argv[1]), Clock()), ApiKey("key-1", "app", "app", (), None, None)  # type: ignore[arg-type]
    app = ApiKey(app.id, app.name, app.tenant, (), app.created, None, Quotas(requests_per_minute=100))
    count = 0
    for _ in range(100):
        with suppress(ApiError):
            ledger.reserve(app, 1)
            count += 1
    print(count)


@pytest.mark.parametrize(
    ("outcome", "used"),
    [
        (Outcome(admitted=True, sent=True, left=True), 30),
        (Outcome(admitted=True, sent=True, left=True, prompt_tokens=500, streamed=8), 508),
        (Outcome(admitted=True, sent=True, left=True, prompt_tokens=500, streamed=99), 540),
        (Outcome(admitted=True, left=True), 0),
        (Outcome(admitted=True, sent=True, input_tokens=20, output_tokens=5), 25),
        (Outcome(admitted=True, sent=True), 0),
    ],
    ids=["before the first token", "midway", "near the end", "while waiting", "to the end", "refused by the server"],
)
def test_quotas_count_what_the_server_computed(tmp_path: Path, outcome: Outcome, used: int) -> None:
    quotas = KeyQuotas(tmp_path / "quotas.sqlite")
    key = ApiKey.new("app", quotas=Quotas(tokens_per_minute=10_000))
    with quotas.hold(key, 30, 40, outcome):
        pass
    with quotas.hold(key, 0, 0, Outcome()) as headers:
        assert headers["x-ratelimit-remaining-tokens"] == str(10_000 - used)
