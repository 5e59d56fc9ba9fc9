"""What rows of a batch wait for before they are sent: quotas of the key, and the share of the tenant."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from inflight_client import InflightError
from inflight_client.results import Generation, Timings, Usage
from inflight_client.sampling import Guide, Sampling

from inflight.batch.dispatch.backend import ServerLoad
from inflight.batch.job.rows import GenerateRequest, RowAnswer, RowRequest
from inflight.gateway.batches.row_gate import GatedBackend, RowChecks, RowQuotas, write_share
from inflight.gateway.key_editing import add_key, limit_key, revoke_key
from inflight.gateway.key_file import ApiKey, Quotas
from inflight.gateway.outcome import Outcome
from inflight.gateway.quotas import QuotaLedger
from inflight.openai_api.errors import ApiError
from tests.fixtures.errors import raises
from tests.fixtures.waiting import wait_until_async

ROW = GenerateRequest("tea for two", 10)
USED = 7


class Server:
    """Answers rows when it is let, and knows the most that it had at a time."""

    name = "server"

    def __init__(self, together: int = 1) -> None:
        """Rows are answered so many at a time."""
        self.open = self.most = 0
        self._together = asyncio.Barrier(together)
        self.error: InflightError | None = None

    async def send(self, requests: Sequence[RowRequest], request_id: str) -> Sequence[RowAnswer | InflightError]:
        self.open += 1
        self.most = max(self.most, self.open)
        await self._together.wait()
        await asyncio.sleep(0.002)
        self.open -= 1
        if self.error:
            raise self.error
        return [Generation("tea", "stop", Usage(3, 4), Timings(0, 0), request_id) for _ in requests]

    async def load(self) -> ServerLoad:
        return ServerLoad(0, 0, 4)

    async def ready(self) -> bool:
        return True

    async def build(self) -> str:
        return "build"

    def prioritize(self, priority: int) -> bool:
        return False

    async def close(self) -> None: ...


class Account:
    """A key with quotas, in a file, and its ledger."""

    def __init__(self, folder: Path, **quotas: int) -> None:
        self.file, self.path = folder / "keys.json", folder / "quotas.sqlite"
        self.key = ApiKey.new("app", quotas=Quotas(**quotas))
        add_key(self.file, self.key)
        self.ledger = QuotaLedger(self.path)

    def gate(self, server: Server) -> GatedBackend:
        return GatedBackend(server, RowQuotas(self.file, self.key.id, self.path), self.file.parent)


async def send_all(gate: GatedBackend, count: int) -> list[object]:
    return await asyncio.gather(*(gate.send([ROW], str(each)) for each in range(count)), return_exceptions=True)


def test_rows_count_to_the_quotas_by_what_they_used(tmp_path: Path) -> None:
    account, server = Account(tmp_path, tokens_per_day=100, max_concurrent=3), Server(together=2)
    gate = account.gate(server)
    answers = asyncio.run(send_all(gate, 8))
    assert (len(answers), server.most) == (8, 2)  # the third is for other callers of the key
    with raises(ApiError, "rate_limit_exceeded"):
        account.ledger.reserve(account.key, 100 - 8 * USED + 1)
    account.ledger.reserve(account.key, 100 - 8 * USED)


def test_failed_rows_are_not_counted_and_rows_that_never_fit_are_errors(tmp_path: Path) -> None:
    account, server = Account(tmp_path, tokens_per_day=20), Server()
    server.error = InflightError("gone", "server_gone")
    assert set(map(str, asyncio.run(send_all(account.gate(server), 3)))) == {str(server.error)}
    large = GenerateRequest("tea", 21)
    with raises(InflightError, "row_invalid"):
        asyncio.run(account.gate(server).send([large], "large"))
    account.ledger.reserve(account.key, 20)


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_text("{")], ids=["missing", "damaged"])
def test_rows_of_a_key_that_could_never_be_read_wait(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    account, server = Account(tmp_path, tokens_per_day=20), Server()
    damage(account.file)
    with raises(InflightError, "overloaded", naming=str(account.file)):
        asyncio.run(account.gate(server).send([ROW], "1"))
    assert server.most == 0


@pytest.mark.parametrize(
    ("guide", "left"),
    [
        (Guide("regex", "hemlock|a@b.example"), "hemlock|[email]"),
        (
            Guide("json_schema", '{"enum": ["a@b.example"], "type": "string"}'),
            '{"enum": ["[email]"], "type": "string"}',
        ),
        (Guide("json"), ""),
    ],
)
def test_the_format_that_a_row_asks_for_is_checked(tmp_path: Path, guide: Guide, left: str) -> None:
    (routes := tmp_path / "routes.yaml").write_text("checks: [{kind: pii, at: before}]")
    row = GenerateRequest(
        "tea", 10, Sampling(guide=guide), schema={"type": "string"} if "schema" in guide.type else None
    )
    checked = asyncio.run(RowChecks(routes, "tea", {}).request(row, Outcome()))
    assert checked.sampling.guide is not None
    assert checked.sampling.guide.text == left
    assert checked.schema == (json.loads(left) if row.schema else None)
    routes.write_text('checks: [{kind: deny, words: ["hemlock", "b.example"]}]')
    if left:
        with raises(InflightError, "content_filter"):
            asyncio.run(RowChecks(routes, "tea", {}).request(row, Outcome()))


def test_a_job_s_own_simple_requests_pass_and_are_not_counted(tmp_path: Path) -> None:
    account, server = Account(tmp_path, tokens_per_day=1), Server()
    asyncio.run(account.gate(server).send([ROW], "run-short-1"))
    assert server.most == 1
    account.ledger.reserve(account.key, 1)


def test_the_prompt_counts_of_a_row_whose_time_ended(tmp_path: Path) -> None:
    account, server = Account(tmp_path, tokens_per_day=100), Server()
    server.error = InflightError("late", "deadline_exceeded")
    asyncio.run(send_all(account.gate(server), 1))
    with raises(ApiError, "rate_limit_exceeded"):
        account.ledger.reserve(account.key, 98)
    account.ledger.reserve(account.key, 97)  # "tea for two": 1 + 11 // 4


def test_rows_wait_for_the_next_window_or_another_quota(tmp_path: Path) -> None:
    account, server = Account(tmp_path, tokens_per_day=30), Server()
    gate = account.gate(server)

    async def run() -> None:
        tasks = [asyncio.create_task(gate.send([ROW], str(each))) for each in range(6)]
        await wait_until_async(lambda: sum(each.done() for each in tasks) == 3)
        _, waiting = await asyncio.wait(tasks, timeout=0.1)
        assert len(waiting) == 3  # 7 + 7 + 13 of 30
        limit_key(account.file, "app", Quotas(tokens_per_day=100))
        revoke_key(account.file, "app")  # its batches run on
        await asyncio.wait_for(asyncio.gather(*tasks), 60)

    asyncio.run(run())


@pytest.mark.parametrize(("share", "most"), [(None, 9), (1.0, 9), (0.5, 2), (0.1, 1)])
def test_a_batch_takes_its_share_of_a_server(tmp_path: Path, share: float | None, most: int) -> None:
    server = Server()
    gate = GatedBackend(server, None, tmp_path)
    if share is not None:
        write_share(tmp_path, share)
    asyncio.run(gate.load())
    asyncio.run(send_all(gate, 9))
    assert server.most == most
