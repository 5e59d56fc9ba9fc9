"""Pages as a reader sees them, in a Chromium at the size of a laptop's screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Error, Page, Request

from loadtests.analysis.summary import Requests
from loadtests.report.document import CHART_LIBRARY, write_library
from loadtests.report.page import comparison_page, run_page, sweep_page
from tests.fixtures.load_summaries import empty_summary, sample_comparison, sample_sweep, typical_summary

HOSTILE = (
    "</script><script>document.title='taken'</script><img src=//example.org/x onerror=alert(1)>"
    "\x00\x1b\ud800 🫖 {{7*7}}"
)
PHONE = {"width": 390, "height": 844}
CUT_OFF = """() => [...document.querySelectorAll("main *")].filter(e => !e.closest(".scroll table, svg"))
    .filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"""
OVERLAPS = """() => [...document.querySelectorAll(".chart")].flatMap(chart => {
    const boxes = (place, selector) =>
        [...place.querySelectorAll(selector)].map(e => [e.textContent, e.getBoundingClientRect()]);
    const titles = [...boxes(chart, ".annotation-text, .xtitle"), ...boxes(chart.parentElement, "figcaption")];
    const meet = (a, b) => a.width && b.width && a.left < b.right - 1 && b.left < a.right - 1
        && a.top < b.bottom - 1 && b.top < a.bottom - 1;
    return boxes(chart, ".legendtext").flatMap(([name, a]) =>
        titles.filter(([_, b]) => meet(a, b)).map(([title]) => `${chart.id}: ${name} over ${title}`));
})"""
"""Names in legends that lie over a title."""
DRAWN = "() => document.documentElement.dataset.charts !== undefined"


@dataclass
class OpenedPage:
    """A page that was opened, and all that the browser had to say about it."""

    page: Page
    messages: list[str]

    def text(self, selector: str = "main") -> str:
        return " ".join(self.page.locator(selector).inner_text().split())

    def lines(self, chart: str) -> int:
        """The lines of a chart that are really drawn: with more than one point, within the chart."""
        found: int = self.page.evaluate(
            "name => [...document.querySelectorAll(`#${name} .scatterlayer .js-line`)]"
            ".filter(line => line.getTotalLength() > 20 && line.getBoundingClientRect().width > 20).length",
            chart,
        )
        return found

    def width(self) -> int:
        return int(self.page.evaluate("document.scrollingElement.scrollWidth"))


Show = Callable[[str], OpenedPage]


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[Show]:
    """Opens a page from a file; whatever the browser complains of, or asks for beyond that file, fails the test."""
    said: list[str] = []
    file = tmp_path / "report.html"
    context = browser.new_context(viewport={"width": 1366, "height": 768})
    page = context.new_page()

    def complain(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            said.append(f"console: {message.text}")

    def fail(error: Error) -> None:
        said.append(f"script: {error}")

    def ask(request: Request) -> None:
        # Pages that share the chart library find it beside them, where `write_library` puts it.
        allowed = (
            {file.as_uri(), (tmp_path / CHART_LIBRARY).as_uri()}
            if (tmp_path / CHART_LIBRARY).exists()
            else {file.as_uri()}
        )
        if request.url not in allowed and not request.url.startswith("data:"):
            said.append(f"request: {request.url}")

    page.on("console", complain)
    page.on("pageerror", fail)
    page.on("request", ask)

    def opened(html: str) -> OpenedPage:
        file.write_text(html, encoding="utf-8")
        page.goto(file.as_uri())
        if 'id="figures"' in html:
            page.wait_for_function(DRAWN, timeout=60_000)
        return OpenedPage(page, said)

    yield opened
    context.close()
    assert said == []


def check_on_a_phone(screen: OpenedPage) -> None:
    """Every chart is whole on the screen of a phone, and no word is broken."""
    assert screen.page.evaluate(OVERLAPS) == []
    screen.page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    screen.page.wait_for_function(
        "() => [...document.querySelectorAll('.chart')].every(c => c.querySelector('.main-svg').clientWidth <= 390)"
    )
    assert screen.width() <= 390
    assert screen.page.evaluate(CUT_OFF) == []
    assert screen.page.evaluate(OVERLAPS) == []
    broken = """() => [...document.querySelectorAll('.scroll thead th')].filter(e => {
        const range = document.createRange(); range.selectNodeContents(e);
        return range.getClientRects().length > e.textContent.split(' ').length }).map(e => e.textContent)"""
    assert screen.page.evaluate(broken) == []


def test_a_usual_run_fits_a_laptop_and_a_phone_with_all_its_charts_and_no_complaint(show: Show) -> None:
    screen = show(run_page(typical_summary()))
    assert screen.width() <= 1366
    assert screen.lines("timeline") == 13
    assert screen.lines("curve-ttft") == screen.lines("curve-e2e") == 2
    assert screen.lines("curve-itl") == screen.lines("curve-tpot") == 1
    assert screen.lines("trade-off-ttft") == screen.lines("trade-off-itl") == 2
    assert screen.page.locator("#timeline .xtitle").text_content() == "seconds since the run's start"
    assert screen.page.locator(".modebar-btn").count() == 0, "one of plotly's buttons sends the data away"
    box = screen.page.locator("#timeline").bounding_box()
    assert box
    screen.page.mouse.move(box["x"] + 500, box["y"] + 80)
    screen.page.wait_for_selector("#timeline .hoverlayer .legendtext")
    told = screen.page.locator("#timeline .hoverlayer .legendtext").all_text_contents()
    assert len(told) == 13, "one moment of all strips at once"
    assert any(line.startswith("TTFT p99 : ") and line.endswith(" ms") for line in told)
    assert "At 14 requests/s the first token came within" in screen.text("h1")
    screen.page.mouse.move(0, 0)
    screen.page.wait_for_selector("#timeline .hoverlayer .legendtext", state="detached")
    check_on_a_phone(screen)
    marks = [screen.page.locator(f"#timeline .y{number}tick").count() for number in ("", *range(2, 8))]
    assert min(marks) >= 3, marks


def test_a_sweep_shows_its_runs_the_limit_and_the_highest_rate_that_held(show: Show) -> None:
    screen = show(sweep_page(sample_sweep()))
    assert screen.width() <= 1366
    assert screen.lines("trade-off-ttft") == screen.lines("trade-off-itl") == 2
    stars = screen.page.locator("#trade-off-ttft .legendtext").all_text_contents()
    assert stars == ["p50", "p95", "met", "missed", "highest met"]
    assert screen.page.locator("#trade-off-ttft .annotation-text").text_content() == "limit: p95 ttft ≤ 500ms"
    points = screen.page.locator("#trade-off-ttft .scatterlayer .trace:not(:has(.js-line)) .point")
    assert points.count() == len(sample_sweep().steps)
    check_on_a_phone(screen)


def test_a_comparison_shows_the_interval_of_each_change(show: Show) -> None:
    screen = show(comparison_page(sample_comparison()))
    assert screen.width() <= 1366
    intervals = screen.page.locator(".errorbar .xerror")
    assert intervals.count() == 7, "one for each figure with an interval"
    assert all(interval.bounding_box() for interval in intervals.all())
    assert screen.page.locator("#changes .ytick").all_text_contents()[-1] == "p50 ttft"
    assert screen.page.locator("#changes .legendtext").all_text_contents() == ["better", "worse", "no change shown"]
    check_on_a_phone(screen)


def test_titles_name_the_run(show: Show) -> None:
    little = replace(typical_summary(), timeline=empty_summary().timeline, curves={}, load_phases=())
    screen = show(run_page(little, "my-run <1>"))
    assert screen.page.title() == "my-run <1>: 14 requests/s, load test"
    assert screen.text("h1").startswith("my-run <1> At 14 requests/s")
    assert "of 127.0.0.1:8001, 2026-11-22T00:30:00Z, measured for 120 s" in screen.text(".kind")
    served = {"model": "tea", "precision": "int8", "kv_cache_precision": "u8", "max_sequences": 64}
    screen = show(run_page(replace(little, metadata={**little.metadata, "served": served})))
    assert "of tea (int8 weights, u8 KV cache, at most 64 sequences) at 127.0.0.1:8001" in screen.text(".kind")
    screen = show(comparison_page(sample_comparison()))
    assert screen.page.title() == "main and change: comparison of load tests"
    assert screen.text("h1").startswith("main and change")


def test_pages_may_share_the_chart_library_and_run_no_other_script(show: Show, tmp_path: Path) -> None:
    write_library(tmp_path)
    html = sweep_page(sample_sweep(), "my-sweep", CHART_LIBRARY)
    assert len(html) < 200_000
    screen = show(html)
    assert screen.lines("trade-off-ttft") == 2
    other = tmp_path / "other.js"
    other.write_text("document.title = 'taken'")
    screen = show(
        html.replace("</body>", "<script src='other.js'></script><script>document.title='taken'</script></body>")
    )
    assert screen.page.title() == "my-sweep: sweep of load tests"
    assert len([line for line in screen.messages if "Content Security Policy" in line]) == 2
    screen.messages.clear()


def test_a_page_without_its_chart_library_says_what_makes_a_whole_one(show: Show) -> None:
    screen = show(run_page(typical_summary(), "my-run", f"../{CHART_LIBRARY}"))
    assert "inflight load report" in screen.text("#timeline")
    assert screen.messages
    screen.messages.clear()


def test_charts_follow_the_theme_and_fit_the_paper(show: Show) -> None:
    timeline = typical_summary().timeline
    timeline = replace(timeline, columns={"open": timeline.columns["open"]})
    screen = show(run_page(replace(typical_summary(), timeline=timeline, curves={}, load_phases=())))
    colour = "() => getComputedStyle(document.querySelector('#timeline .xtitle')).fill"
    light = screen.page.evaluate(colour)
    screen.page.emulate_media(color_scheme="dark")
    screen.page.wait_for_function(f"light => ({colour})() !== light", arg=light)
    width = "document.querySelector('#timeline .main-svg').getBoundingClientRect().width"
    assert screen.page.evaluate(width) > 1000
    screen.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert screen.page.evaluate(width) < 700
    assert screen.page.evaluate(colour) == light
    screen.page.evaluate("dispatchEvent(new Event('afterprint'))")
    screen.page.wait_for_function(f"{width} > 1000")


def test_a_run_that_is_not_to_be_trusted_says_so_in_red_before_all_else(show: Show) -> None:
    reason = "1% of requests were sent at least 230 ms late"
    grade = replace(typical_summary().validity, reasons=(reason,))
    screen = show(
        run_page(
            replace(typical_summary(), validity=grade, timeline=empty_summary().timeline, curves={}, load_phases=())
        )
    )
    banner = screen.page.get_by_role("alert")
    assert banner.is_visible()
    assert reason.capitalize() in banner.inner_text()
    red, green, blue = map(int, banner.evaluate("e => getComputedStyle(e).color").strip("rgb()").split(","))
    assert red > 2 * max(green, blue)
    box, head = banner.bounding_box(), screen.page.locator("h1").bounding_box()
    assert box
    assert head
    assert box["y"] + box["height"] <= head["y"]


def test_hostile_texts_are_shown_and_do_nothing(show: Show) -> None:
    requests = Requests(3, 1, 0, 0, 0, 2, 0, {HOSTILE: 1, "unknown": 1}, {HOSTILE: HOSTILE, "unknown": "é" * 1_048_576})
    facts = {HOSTILE: {HOSTILE: [HOSTILE]}, "plan": {"server": HOSTILE, "x" * 300: "y" * 3000}}
    summary = replace(
        typical_summary(),
        requests=requests,
        metadata=facts,
        validity=replace(typical_summary().validity, reasons=(HOSTILE,)),
    )
    html = run_page(
        replace(
            summary, timeline=empty_summary().timeline, load_phases=(), curves={"itl": typical_summary().curves["itl"]}
        )
    )
    assert len(html) < 5_200_000
    screen = show(html)
    assert screen.page.title() == "14 requests/s, load test"
    assert screen.width() <= 1366
    assert "</script><script>document.title='taken'</script>" in screen.text("table.errors")
    assert "␀␛� 🫖 {{7*7}}" in screen.text("table.errors")
    assert "(1,048,576 characters)" in screen.text("table.errors")
    assert screen.page.locator("img").count() == 0
