"""What requests of an overloaded route get: less, a smaller model, a refusal, or what they ask for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from inflight_client import Deployment, InflightError
from inflight_client.sampling import Sampling

from inflight.gateway.admission_queue import Admission
from inflight.gateway.degradation import CHOICE, HEADER, Degradation
from inflight.gateway.http import BodyMemory, Request
from inflight.gateway.key_file import ApiKey
from inflight.gateway.key_ring import Caller
from inflight.gateway.metrics import GatewayMetrics
from inflight.gateway.routes_file import Route, read_routes
from inflight.gateway.server_pool import Candidate, ServerPool
from inflight.gateway.settings import GatewaySettings
from inflight.openai_api.errors import ApiError
from inflight.openai_api.request import RequestDefaults, parse_request
from tests.fixtures.errors import raises

SHORT, SMALLER, REFUSED = {"max_tokens": 64}, {"model": "small"}, {"refuse": True}
SMALL = {"model": "small", "max_seq_len": 300}
BODY = {"model": "chat", "messages": [{"role": "user", "content": "tea"}], "max_tokens": 200}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "tea", "schema": {"type": "object"}}}
TOOL = {"type": "function", "function": {"name": "brew"}}


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


class Gateway:
    """The ladders of one that is overloaded: the tenants a and b wait, and c has less than its share."""

    def __init__(
        self, folder: Path, rungs: list[Any], small: Mapping[str, Any] = SMALL, targets: Any = ({"model": "large"},)
    ) -> None:
        path = folder / "routes.yaml"
        ladder = {"enter_wait": 0.001, "enter_seconds": 0, "rungs": rungs}
        path.write_text(json.dumps({"routes": {"chat": {"targets": targets, "ladder": ladder}}}))
        self.pool = ServerPool(GatewaySettings(("127.0.0.1:1", "127.0.0.1:2"), routes=str(path), state_dir=str(folder)))
        for server, served in zip(self.pool.servers, ({"model": "large", "max_seq_len": 8000}, small), strict=True):
            inputs: Any = {"guided_decoding_guide": ("BYTES", (1,))}
            server.deployment, server.ready = Deployment("ensemble", "inflight", inputs, served=served), True
        self.metrics = GatewayMetrics(lambda: True)
        self.admission = Admission(lambda: 4, 100)
        self.admissions: dict[str, Admission] = {}
        self._degradation = Degradation(
            self.pool, self.metrics, lambda model, address: self.admissions.get(model, self.admission)
        )
        self.degraded = ""

    async def overload(self) -> None:
        await self.admission.enter(2, "c")
        self.admission.leave(2, 1.0, "c")
        await self.admission.enter(2, "a")
        self._waiting = [asyncio.create_task(self.admission.enter(1, tenant)) for tenant in "aabb"]
        await asyncio.sleep(0)

    def ask(
        self, caller: Caller, header: str | None = None, started: bool = False, **fields: Any
    ) -> tuple[int | None, str]:
        """Return the most tokens of an answer, and the model of its first target."""
        headers = [] if header is None else [(CHOICE.encode(), header.encode())]
        scope = {"type": "http", "method": "POST", "path": "/", "headers": headers}
        request = Request(scope, None, None, "id", 1, BodyMemory(1))  # type: ignore[arg-type]
        request.started = started
        parsed = parse_request({**BODY, **fields}, True, RequestDefaults(None, Sampling()))
        targets: Sequence[Candidate] = self.pool.candidates("generate", parsed.model, None, "id")[:1]
        try:
            parsed, targets = self._degradation.apply(parsed, targets, request, caller)
        finally:
            self.degraded = request.response_headers.get(HEADER, "")
            assert request.outcome.rung == self.degraded
        return parsed.max_tokens, targets[0].target.model


def caller_of(tenant: str = "b", **options: Any) -> Caller:
    return Caller(tenant, key=ApiKey.new("app", tenant=tenant, **options))


def ask(gateway: Gateway, caller: Caller | None = None, header: str | None = None, **fields: Any) -> Any:
    async def run() -> Any:
        await gateway.overload()
        return gateway.ask(caller or caller_of(), header, **fields)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("rung", "fields", "answer", "degraded"),
    [
        (SHORT, {}, (64, "large"), "max_tokens=64"),
        (SHORT, {"max_tokens": None}, (64, "large"), "max_tokens=64"),
        (SHORT, {"max_tokens": 64}, (64, "large"), ""),
        (SHORT, {"response_format": SCHEMA}, (200, "large"), "max_tokens=64;skipped=response_format"),
        (SHORT, {"tools": [TOOL]}, (200, "large"), "max_tokens=64;skipped=tools"),
        (SHORT, {"min_tokens": 65}, (200, "large"), "max_tokens=64;skipped=min_tokens"),
        (SMALLER, {}, (200, "small"), "model=small"),
        (SMALLER, {"response_format": SCHEMA}, (200, "small"), "model=small"),
        (SMALLER, {"max_tokens": 300}, (300, "large"), "model=small;skipped=context"),
        (SMALLER, {"messages": user("tea " * 40)}, (200, "small"), "model=small"),
        (SMALLER, {"messages": user("чай " * 40)}, (200, "large"), "model=small;skipped=context"),
        (SMALLER, {"logprobs": True, "top_logprobs": 2}, (200, "large"), "model=small;skipped=top_logprobs"),
    ],
)
def test_a_rung_changes_what_fits_and_the_header_says_so(
    tmp_path: Path, rung: Any, fields: dict[str, Any], answer: tuple[int, str], degraded: str
) -> None:
    gateway = Gateway(tmp_path, [rung])
    assert ask(gateway, **fields) == answer
    assert gateway.degraded == degraded
    counted = f'rung="{degraded}"' if degraded and "skipped" not in degraded else 'rung="'
    assert (counted in gateway.metrics.page().decode()) == (degraded != "" and "skipped" not in degraded)


def test_a_smaller_model_that_is_not_ready_or_not_a_conversations_is_skipped(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path, [SMALLER], {**SMALL, "chat_template": False})
    assert ask(gateway) == (200, "large")
    assert gateway.degraded == "model=small;skipped=messages"
    gateway = Gateway(tmp_path, [SMALLER])
    gateway.pool.servers[1].ready = False
    assert ask(gateway) == (200, "large")
    assert gateway.degraded == "model=small;skipped=unavailable"


def test_the_last_rung_refuses_with_a_time_to_come_back(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path, [REFUSED])
    with raises(ApiError, "overloaded") as refused:
        ask(gateway)
    assert (refused.value.status, gateway.degraded) == (429, "refuse")
    assert int(refused.value.headers["retry-after"]) >= 1
    assert 'inflight_gateway_rung{route="chat"} 1.0' in gateway.metrics.page().decode()


@pytest.mark.parametrize(
    ("caller", "header"),
    [(caller_of(), "never"), (caller_of(degrade=False), None), (caller_of("c"), None)],
    ids=["by header", "by key", "within its share"],
)
def test_a_request_that_opts_out_or_is_within_its_share_gets_what_it_asks_for(
    tmp_path: Path, caller: Caller, header: str | None
) -> None:
    gateway = Gateway(tmp_path, [REFUSED])
    assert ask(gateway, caller, header) == (200, "large")
    assert gateway.degraded == ""


def test_a_response_that_has_begun_is_not_degraded_since_it_could_not_say_so(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path, [REFUSED])
    assert ask(gateway, started=True) == (200, "large")
    assert gateway.degraded == ""


def test_a_route_that_has_lost_its_ladder_has_no_rung(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path, [SHORT])
    assert ask(gateway) == (64, "large")
    routes = gateway.pool.routes
    chat = routes.current["chat"].model_copy(update={"ladder": None})
    routes._file = routes._file.model_copy(update={"routes": {"chat": chat}})
    assert gateway.ask(caller_of()) == (200, "large")
    assert 'inflight_gateway_rung{route="chat"} 0.0' in gateway.metrics.page().decode()


def test_the_wait_is_the_longest_of_all_targets_whichever_a_request_goes_to(tmp_path: Path) -> None:
    targets = [{"model": "small", "weight": 1e6}, {"model": "large", "weight": 1e-6}]
    gateway = Gateway(tmp_path, [SHORT], targets=targets)
    gateway.admissions["small"] = Admission(lambda: 4, 100)
    assert ask(gateway) == (64, "small")


def test_another_choice_is_refused(tmp_path: Path) -> None:
    with raises(ApiError, "invalid_parameter", naming=CHOICE):
        ask(Gateway(tmp_path, [SHORT]), header="always")


def test_a_tier_has_a_target_of_its_own() -> None:
    tiers = {"priority": {"model": "quick"}, "flex": {"model": "cheap"}}
    route = Route.model_validate({"targets": [{"model": "usual"}], "tiers": tiers})
    firsts = {tier: route.order("id", tier)[0].model for tier in (None, "default", "priority", "flex")}
    assert firsts == {None: "usual", "default": "usual", "priority": "quick", "flex": "cheap"}


def test_a_ladder_to_its_own_route_is_refused(tmp_path: Path) -> None:
    (tmp_path / "routes.yaml").write_text(
        json.dumps({"routes": {"chat": {"targets": [{"model": "a"}], "ladder": {"rungs": [{"model": "chat"}]}}}})
    )
    with raises(InflightError, "invalid_parameter", naming="chat"):
        read_routes(tmp_path / "routes.yaml")
