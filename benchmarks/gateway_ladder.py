"""Degradation by a ladder: a ramp to three times the capacity and back, with a ladder and with refusals alone.

The engine is the fake one, whose steps take a known time, so its capacity is known. One request in ten opts out.
Goodput is the rate of whole answers within `--limit` seconds, over the ramp. `--chart` writes an SVG of both runs.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import click

from benchmarks.client_cost import PROMPT, paced_engine
from benchmarks.completion_client import send
from benchmarks.figures import Figure, out_option, report
from benchmarks.fixtures import bench_engine
from benchmarks.gateway_cost import gateway
from inflight.deploy.server.server import Server

_SEQUENCES, _STEP_SECONDS = 8, 0.02
_TOKENS, _FEWER = 64, 12
_CAPACITY = _SEQUENCES / (_TOKENS * _STEP_SECONDS)
_WAITING = 16
_PEAK, _LOW = 3.0, 0.5
_UP, _HOLD, _TAIL = 10.0, 20.0, 25.0
_RAMP = 2 * _UP + _HOLD
_LADDER = {"enter_wait": 1.0, "enter_seconds": 1.0, "leave_seconds": 5.0, "rungs": [{"max_tokens": _FEWER}]}


@dataclass(frozen=True)
class Answer:
    """One request: when it was sent and answered, in seconds from the beginning; `tokens` 0: it was refused."""

    sent: float
    ended: float
    tokens: int
    degraded: bool
    opted_out: bool


@click.command(help=__doc__)
@click.option("--limit", default=6.0, show_default=True, help="Seconds within which an answer is good.")
@click.option("--chart", type=click.Path(path_type=Path), default=None, help="SVG to write.")
@out_option("gateway_ladder")
def main(limit: float, chart: Path | None, out: Path) -> None:
    engine = replace(paced_engine(_STEP_SECONDS, _TOKENS), max_num_sequences=_SEQUENCES)
    runs: dict[str, list[Answer]] = {}
    rungs: list[tuple[float, int]] = []
    with Server(bench_engine("tiny-llama", "fp32"), engine) as server, tempfile.TemporaryDirectory() as folder:
        for kind in ("refusing", "ladder"):
            routes = Path(folder) / f"{kind}.json"
            route = {"targets": [{"model": server.manifest.name}], **({"ladder": _LADDER} if kind == "ladder" else {})}
            routes.write_text(json.dumps({"routes": {"chat": route}}))
            with gateway(server, None, routes=str(routes), max_waiting=_WAITING, state_dir=folder) as front:
                runs[kind], seen = asyncio.run(_run(front.port, _TAIL if kind == "ladder" else 0.0))
                rungs = seen or rungs
    good = {
        kind: sum(each.tokens > 0 and each.ended - each.sent <= limit for each in answers if each.sent < _RAMP)
        for kind, answers in runs.items()
    }
    switches = [moment for (_, before), (moment, level) in pairwise(rungs) if level != before]
    pauses = [later - earlier for earlier, later in pairwise(switches)]
    answered = [each for each in runs["ladder"] if each.tokens]
    wronged = sum(each.opted_out and (each.degraded or each.tokens < _TOKENS) for each in answered)
    silent = sum(each.tokens < _TOKENS and not each.degraded for each in answered)
    figures = [
        Figure("goodput with the ladder / refusing alone", [good["ladder"] / good["refusing"]], ">= 1.5"),
        Figure("shortest time between two switches", [min(pauses, default=999.0)], ">= 29.5", "s"),
        Figure("opted-out answers that were degraded", [wronged], "<= 0"),
        Figure("short answers without the header", [silent], "<= 0"),
    ]
    if chart is not None:
        chart.write_text(_picture(runs, rungs))
    counts = {kind: [len(each), sum(one.tokens > 0 for one in each)] for kind, each in runs.items()}
    report(out, figures, {"good": good, "switches": switches, "sent_and_answered": counts})


def _load(moment: float) -> float:
    """The requests a second, in capacities."""
    slope = min(moment, _RAMP - moment) / _UP
    return _LOW + (_PEAK - _LOW) * max(0.0, min(1.0, slope))


async def _run(port: int, tail: float) -> tuple[list[Answer], list[tuple[float, int]]]:
    answers: list[Answer] = []
    rungs: list[tuple[float, int]] = []
    chance, began, tasks = random.Random(1), time.monotonic(), set()

    async def watch() -> None:
        while True:
            page = (await send(port, "GET", "/metrics"))[2]
            lines = [line for line in page.splitlines() if line.startswith("inflight_gateway_rung{")]
            level = float(lines[0].rpartition(" ")[2]) if lines else 0.0
            rungs.append((time.monotonic() - began, int(level)))
            await asyncio.sleep(0.25)

    async def ask() -> None:
        sent, opted_out = time.monotonic() - began, chance.random() < 0.1
        fields = {"model": "chat", "prompt": PROMPT, "max_tokens": _TOKENS, "ignore_eos": True}
        choice = "x-inflight-degrade: never\r\n" if opted_out else ""
        status, head, body = await send(port, "POST", "/v1/completions", json.dumps(fields).encode(), choice)
        tokens = json.loads(body)["usage"]["completion_tokens"] if status == 200 else 0
        answers.append(Answer(sent, time.monotonic() - began, tokens, "x-inflight-degraded" in head, opted_out))

    watcher = asyncio.create_task(watch())
    while (moment := time.monotonic() - began) < _RAMP + tail:
        task = asyncio.create_task(ask())
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        await asyncio.sleep(chance.expovariate(_load(moment) * _CAPACITY))
    await asyncio.gather(*tasks)
    watcher.cancel()
    return answers, rungs


_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 640, 260, 44, 36
_COLOURS = {"refusing": "#c2410c", "ladder": "#0f766e", "load": "#9ca3af", "rung": "#7c3aed"}


def _picture(runs: dict[str, list[Answer]], rungs: Sequence[tuple[float, int]]) -> str:
    """Return an SVG: what comes, and what is answered in a second, in capacities of the engine."""
    end = _RAMP + _TAIL

    def path(points: Iterator[tuple[float, float]], colour: str, more: str = "") -> str:
        places = " ".join(
            f"{_LEFT + x / end * (_WIDTH - _LEFT - 8):.1f},{_HEIGHT - _BOTTOM - y / 3.5 * (_HEIGHT - _BOTTOM - 12):.1f}"
            for x, y in points
        )
        return f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="2" {more}/>'

    def answered(answers: list[Answer]) -> Iterator[tuple[float, float]]:
        for second in range(int(max(each.ended for each in answers))):
            count = sum(each.tokens > 0 and second - 1 <= each.ended < second + 2 for each in answers)
            yield second + 0.5, count / 3 / _CAPACITY

    lines = [path(((x / 2, _load(x / 2)) for x in range(int(2 * end))), _COLOURS["load"], 'stroke-dasharray="4 3"')]
    lines += [path(answered(runs[kind]), _COLOURS[kind]) for kind in runs]
    lines.append(path(((x, 0.25 * level) for x, level in rungs), _COLOURS["rung"], 'stroke-opacity="0.6"'))
    names = (
        *(("requests", "load"), ("answers, refusing alone", "refusing")),
        *(("answers, with a ladder", "ladder"), ("rung", "rung")),
    )
    texts = [
        f'<text x="{_LEFT + 150 * place}" y="{_HEIGHT - 6}" fill="{_COLOURS[kind]}">{text}</text>'
        for place, (text, kind) in enumerate(names)
    ]
    for level in (1, 2, 3):
        y = _HEIGHT - _BOTTOM - level / 3.5 * (_HEIGHT - _BOTTOM - 12)
        texts.append(f'<text x="8" y="{y + 4:.1f}" fill="#6b7280">{level}×</text>')
        texts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - 8}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e5e7eb"/>')
    title = f"<title>Answers a second while {_PEAK:g} times the capacity is asked for, over {end:g} seconds</title>"
    style = 'font-family="sans-serif" font-size="12" role="img"'
    content = "\n".join((title, *texts, *lines))
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" {style}>\n{content}\n</svg>\n'


if __name__ == "__main__":
    main()
