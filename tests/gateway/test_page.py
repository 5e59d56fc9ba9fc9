"""The page at `/` in a real browser: light and dark, narrow and wide, with and without a key."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from inflight.deploy.server.server import Server
from inflight.gateway.key_editing import add_key
from inflight.gateway.key_file import ApiKey
from inflight.gateway.processes import GatewayProcesses
from tests.fixtures.gateway import running_gateway
from tests.fixtures.gateway_requests import MODEL, get

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NARROW, WIDE = {"width": 360, "height": 740}, {"width": 1400, "height": 900}


def opened(browser: Browser, gateway: GatewayProcesses, max_tokens: int = 0, **settings: Any) -> tuple[Page, list[str]]:
    """The page, once it is ready if tokens are given, and what its console says is wrong."""
    page = browser.new_context(**settings).new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(gateway.url.removesuffix("/v1"))
    if max_tokens:
        page.get_by_text("Ready").wait_for()
        if settings.get("viewport") is NARROW:
            page.get_by_text("Settings").click()
        page.get_by_label("Max tokens").fill(str(max_tokens))
    return page, problems


def say(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_role("button", name="Send").click()


@pytest.mark.parametrize("colors", ["light", "dark"])
@pytest.mark.parametrize("size", [NARROW, WIDE], ids=["narrow", "wide"])
def test_a_conversation(browser: Browser, gateway: GatewayProcesses, colors: Any, size: Any) -> None:
    page, problems = opened(browser, gateway, 12, color_scheme=colors, viewport=size)
    say(page, "<b>Is there tea?</b>")
    page.locator(".figures").wait_for()
    assert page.locator(".user").inner_text() == "<b>Is there tea?</b>"
    assert page.locator(".assistant").inner_text()
    figures = page.locator(".figures").inner_text()
    assert "12 tokens" in figures
    assert "tokens/s" in figures
    page.get_by_text("This request as code").click()
    assert MODEL in page.locator("#curl").inner_text()
    assert "from openai import OpenAI" in page.locator("#python").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    background, color = page.evaluate(
        "[getComputedStyle(document.documentElement).colorScheme, matchMedia('(prefers-color-scheme: dark)').matches]"
    )
    assert ("dark" in background, color) == (True, colors == "dark")
    assert problems == []
    page.context.close()


def test_a_conversation_is_kept_edited_and_asked_again(browser: Browser, gateway: GatewayProcesses) -> None:
    page, problems = opened(browser, gateway, 6)
    page.get_by_role("button", name="Write a haiku about tea.").click()
    page.locator(".figures").wait_for()
    page.get_by_text("This request as code").click()
    assert "assistant" not in page.locator("#curl").inner_text()
    page.reload()
    page.get_by_text("Ready").wait_for()
    assert page.locator(".user").inner_text() == "Write a haiku about tea."
    page.get_by_role("button", name="Retry").click()
    page.locator(".figures").wait_for()
    page.get_by_role("button", name="Edit").click()
    assert page.locator(".turn").count() == 0
    assert page.get_by_label("Message", exact=True).input_value() == "Write a haiku about tea."
    page.reload()
    assert page.locator(".turn").count() == 0
    page.get_by_label("Max tokens").fill("600")
    say(page, "go on")
    page.locator(".assistant").wait_for()
    page.get_by_role("button", name="New chat").click()
    page.get_by_role("button", name="Write a haiku about tea.").wait_for()
    page.wait_for_function("!document.getElementById('send').disabled")
    assert page.evaluate("localStorage.getItem('chat')") == "[]"
    assert page.locator(".turn").count() == 0
    assert problems == []


def test_markdown_becomes_elements_and_no_html_runs(browser: Browser, gateway: GatewayProcesses) -> None:
    page, problems = opened(browser, gateway)
    text = "\n".join(
        [
            *(
                "# Tea",
                "",
                "**Green** and `black` <img src=x onerror=alert(1)>",
                "- one",
                "- *two*",
                "",
                "1. first",
                "",
            ),
            *("```python", "<b>x</b>", "```", "> said", "", "| a | b |", "|---|---|", "| 1 | 2 |", ""),
            *("[good](https://a.example/x) [bad](javascript:alert(1))", "```", "never closed"),
        ]
    )
    script = "text => { const box = document.createElement('div'); box.append(markdown(text)); return box.innerHTML; }"
    found = page.evaluate(script, text)
    for part in (
        "<h2>Tea</h2>",
        "<strong>Green</strong>",
        "<code>black</code>",
        "<li><em>two</em></li>",
        "<li>first",
    ):
        assert part in found
    assert "<pre>&lt;b&gt;x&lt;/b&gt;</pre>" in found
    assert found.count("<tr>") == 2
    assert 'href="https://a.example/x"' in found
    assert "javascript:" not in "".join(re.findall('href="[^"]*"', found))
    assert "<img" not in found
    assert "never closed" in found
    assert problems == []


def test_stopping_keeps_what_has_come(browser: Browser, gateway: GatewayProcesses) -> None:
    page, problems = opened(browser, gateway, 3000, viewport=WIDE)
    say(page, "Is there tea?")
    page.locator(".assistant").wait_for()
    page.get_by_role("button", name="Stop").click()
    page.locator(".figures").wait_for()
    assert "stopped" in page.locator(".figures").inner_text()
    page.get_by_role("button", name="New chat").click()
    assert page.locator(".turn").count() == 0
    assert problems == []
    page.context.close()


def test_a_refusal_is_shown_and_loses_no_text(browser: Browser, gateway: GatewayProcesses) -> None:
    page, _ = opened(browser, gateway, 100000, viewport=WIDE)
    say(page, "Is there tea?")
    page.get_by_role("alert").wait_for()
    assert "maximum context length" in page.get_by_role("alert").inner_text()
    assert page.get_by_label("Message", exact=True).input_value() == "Is there tea?"
    page.context.close()


def test_it_works_with_a_key(browser: Browser, hurried_server: Server, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    token = add_key(path, ApiKey.new("page"))
    with running_gateway(hurried_server, key_file=str(path)) as gateway:
        page, _ = opened(browser, gateway, viewport=WIDE)
        page.get_by_text("Enter an API key.").wait_for()
        page.get_by_label("API key").fill(token)
        page.get_by_label("API key").press("Tab")
        page.get_by_text("Ready").wait_for()
        say(page, "Is there tea?")
        page.locator(".figures").wait_for()
        assert token not in page.locator("#curl").inner_text() + page.locator("#python").inner_text()
        page.context.close()


def test_the_page_runs_only_its_own_script(gateway: GatewayProcesses) -> None:
    for path in ("/", "/live", "/docs"):
        answer = get(gateway, path)
        assert answer.headers["content-type"].startswith("text/html")
        assert "unsafe-inline" not in answer.headers["content-security-policy"]
        assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_every_route_is_described(gateway: GatewayProcesses) -> None:
    document = get(gateway, "/openapi.json").json
    for path, methods in document["paths"].items():
        for method in methods:
            answer = get(gateway, path.replace("{id}", "none"), method=method.upper())
            assert answer.status not in (401, 405), path
            assert answer.status != 404 or answer.error["code"] != "not_found", path
