"""The page at `/live` in a real browser, while requests run."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from inflight.deploy.server.server import Server
from inflight.gateway.key_editing import add_key
from inflight.gateway.key_file import ApiKey
from inflight.gateway.processes import GatewayProcesses
from tests.fixtures.gateway import running_gateway
from tests.fixtures.gateway_requests import MODEL, complete, get
from tests.fixtures.waiting import wait_until
from tests.gateway.test_page import NARROW, WIDE

TOKENS = 200
"""Of an answer, which is there in several of the page's samples, one a second."""

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


def opened(browser: Browser, gateway: GatewayProcesses, **settings: Any) -> tuple[Page, list[str]]:
    page = browser.new_context(**settings).new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(gateway.url.removesuffix("/v1") + "/live")
    return page, problems


@pytest.mark.parametrize(("colors", "size"), [("light", WIDE), ("dark", NARROW)])
def test_it_shows_what_runs(browser: Browser, paced_server: Server, colors: Any, size: Any) -> None:
    with running_gateway(paced_server) as gateway:
        page, problems = opened(browser, gateway, color_scheme=colors, viewport=size)
        page.get_by_text("Live", exact=True).wait_for()
        assert page.get_by_label("Model").input_value() == paced_server.grpc_address
        assert page.locator("#model option").all_inner_texts() == [MODEL]
        load = [threading.Thread(target=complete, args=(gateway,), kwargs={"max_tokens": TOKENS}) for _ in range(5)]
        for thread in load:
            thread.start()
        page.get_by_text("5 running, 0 waiting").wait_for()
        wait_until(lambda: page.evaluate("samples.some(one => one.tokens > 0 && one.stepDecode > 1 && one.used > 0)"))
        for thread in load:
            thread.join()
        wait_until(lambda: page.evaluate("samples.at(-1).running === 0 && samples.at(-1).p99 > samples.at(-1).p50"))
        totals = page.evaluate(
            "[samples[0].raw, samples.at(-1).raw].map(raw => [raw.decode_tokens, raw.prefill_tokens])"
        )
        assert totals[1][0] - totals[0][0] == 5 * TOKENS
        assert totals[1][1] > totals[0][1]
        assert page.get_by_role("img", name="Requests over the last two minutes. Now: 0 running, 0 waiting.").count()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert problems == []
        page.context.close()


def test_it_says_that_the_gateway_is_gone(browser: Browser, hurried_server: Server) -> None:
    with running_gateway(hurried_server) as gateway:
        page, _ = opened(browser, gateway)
        page.get_by_text("Live", exact=True).wait_for()
        gateway.stop()
        page.get_by_text("The gateway does not answer; trying again.").wait_for()
        page.context.close()


def test_each_server_is_shown_and_one_that_is_away_is_not_ready(hurried_server: Server, paced_server: Server) -> None:
    with running_gateway(hurried_server, paced_server, "127.0.0.1:1") as gateway:
        wait_until(
            lambda: [each["ready"] for each in get(gateway, "/live/data").json["servers"]] == [True, True, False]
        )
        *running, away = get(gateway, "/live/data").json["servers"]
        assert all(each["figures"]["blocks"] > 0 for each in running)
        assert (away["figures"], away["model"]) == ({}, "")


def test_its_figures_need_a_trusted_key(browser: Browser, hurried_server: Server, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    token = add_key(path, ApiKey.new("watcher", trusted=True))
    with running_gateway(hurried_server, key_file=str(path)) as gateway:
        assert get(gateway, "/live/data").status == get(gateway, "/metrics").status == 401
        page, _ = opened(browser, gateway)
        page.get_by_label("API key").fill(token)
        page.get_by_label("API key").press("Tab")
        page.get_by_text("Live", exact=True).wait_for()
        page.context.close()
