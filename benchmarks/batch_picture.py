"""Draws docs/in-flight-batching.svg from a real run: `python -m benchmarks.batch_picture ENGINE_DIR > FILE`.

Questions arrive at an engine with four places while others run. Each step of its scheduler is recorded: who waits,
whose prompt is computed, and who gets a token.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from xml.sax.saxutils import escape

import click

from inflight.runtime.backends.openvino.model_runner import EngineManifest, OpenVinoModelRunner
from inflight.runtime.engine.interface import EngineOptions
from inflight.runtime.engine.scheduler import Scheduler
from inflight.runtime.messages import GenerationRequest, TokenEvent
from inflight.text.chat_template import ChatRenderer
from inflight.text.tokenizer import load_tokenizer

PLACES, STEP_TOKENS = 4, 48
QUESTIONS = (
    (0, "What is the capital of France?"),
    (0, "Name three kinds of tea."),
    (2, "Answer in one word: what color is the sky? " + "Think of a clear summer day at noon. " * 6),
    (4, "Write a short sentence about rain."),
    (6, "What is 2 + 2?"),
    (9, "Who wrote Hamlet?"),
    (14, "Name two planets."),
    (20, "Say hello in French."),
)
"""The step before which each one arrives, and its text."""
LEGEND = ((0, "waits", "waits"), (80, "prefill", "its prompt is computed"), (275, "decode", "gets a token"))
_LEFT, _RIGHT, _TOP, _ROW, _WIDTH = 232, 12, 84, 26, 840
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1f2328}.title{font-weight:600;font-size:15px}.quiet{fill:#59636e}"
    ".waits{fill:#afb8c1}.prefill{fill:#c2570c}.decode{fill:#0969da}@media(prefers-color-scheme:dark){text{fill:#e6edf3}"
    ".quiet{fill:#9198a1}.waits{fill:#484f58}.prefill{fill:#f5a742}.decode{fill:#4493f8}}"
)


def record(engine: str, max_tokens: int) -> list[dict[int, str]]:
    """Run the questions; return for each step what happened to each of them: `waits`, `prefill` or `decode`."""
    options = EngineOptions("openvino", engine, 8192, max_num_sequences=PLACES, max_num_tokens=STEP_TOKENS, itl_bound=0)
    tokenizer, renderer = load_tokenizer(engine), ChatRenderer.from_directory(engine)
    if renderer is None:
        raise click.ClickException(f"{engine} has no chat template; choose an engine of a chat model")
    scheduler, ends = Scheduler(OpenVinoModelRunner(options)), EngineManifest.from_directory(engine).end_ids
    steps: list[dict[int, str]] = []
    unfinished: dict[int, int] = {}
    begun: set[int] = set()
    got: set[int] = set()

    def collect(number: int, event: TokenEvent) -> None:
        got.add(number)
        if event.finish_reason is not None:
            del unfinished[number]

    while len(steps) <= QUESTIONS[-1][0] or unfinished:
        for number, (arrival, text) in enumerate(QUESTIONS):
            if arrival == len(steps):
                prompt = renderer.render([{"role": "user", "content": text}], add_generation_prompt=True)
                ids = tuple(tokenizer.encode(prompt, add_special_tokens=False).ids)
                request = GenerationRequest(ids, max_tokens, ends)
                unfinished[number] = scheduler.submit(request, partial(collect, number))
        before = list(unfinished)
        scheduler.step()
        admitted = before[: len(before) - scheduler.stats().waiting]
        steps.append(
            {each: "waits" if each not in admitted else "decode" if each in begun else "prefill" for each in before}
        )
        begun |= got
    return steps


def picture(steps: Sequence[dict[int, str]], caption: str) -> str:
    """Return the steps as an SVG: a row for each request, and a column for each step."""
    width, height = (_WIDTH - _LEFT - _RIGHT) / len(steps), _TOP + _ROW * len(QUESTIONS) + 26
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        f"<title>{len(QUESTIONS)} requests join and leave a running batch of {PLACES} in {len(steps)} steps</title>",
        f"<style>{_STYLE}</style>",
        '<text class="title" x="8" y="22">Requests join and leave the running batch at every step</text>',
        f'<text class="quiet" x="8" y="44">{escape(caption)}</text>',
    ]
    for offset, name, text in LEGEND:
        parts.append(f'<rect class="{name}" x="{_LEFT + offset}" y="58" width="12" height="12" rx="2"/>')
        parts.append(f'<text x="{_LEFT + offset + 18}" y="69">{text}</text>')
    for number, (_, text) in enumerate(QUESTIONS):
        y = _TOP + number * _ROW
        label = text if len(text) < 32 else f"{text[:28].strip()} …"
        parts.append(f'<text x="{_LEFT - 10}" y="{y + 15}" text-anchor="end">{escape(label)}</text>')
        for step, states in enumerate(steps):
            if state := states.get(number):
                place = f'x="{_LEFT + step * width:.1f}" y="{y}" width="{max(width - 1.5, 1):.1f}"'
                parts.append(f'<rect class="{state}" {place} height="20" rx="2"/>')
    axis = _TOP + _ROW * len(QUESTIONS) + 14
    parts.append(f'<text class="quiet" x="{_LEFT}" y="{axis}">step 1</text>')
    parts.append(f'<text class="quiet" x="{_WIDTH - _RIGHT}" y="{axis}" text-anchor="end">step {len(steps)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


@click.command(help=__doc__)
@click.argument("engine", type=click.Path(exists=True, file_okay=False))
@click.option("--max-tokens", default=24, show_default=True, help="Most tokens of an answer.")
def main(engine: str, max_tokens: int) -> None:
    manifest = json.loads((Path(engine) / "engine.json").read_text(encoding="utf-8"))
    name, precision = manifest["name"], manifest["precision"]
    caption = (
        f"{name} at {precision}: {PLACES} places, {STEP_TOKENS} tokens a step, answers of up to {max_tokens} tokens"
    )
    click.echo(picture(record(engine, max_tokens), caption), nl=False)


if __name__ == "__main__":
    main()
