"""Answers of mixed lengths from a model with an encoder and a decoder, through the server and from transformers'
`generate` on static batches in the order of arrival, greedy and with 4 beams.

The model has the sizes of T5-small in fp32, and answers as a small one that was trained to copy and spell 1 to 16
digits. Each round sends the same texts both ways, with the same threads; the fastest size of a static batch counts. All
times are from texts to texts.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from inflight_client import Client

from benchmarks.encoders.trained_t5 import MOST_DIGITS, draw_example, write_trained_t5, write_wide_t5
from benchmarks.figures import Figure, out_option, report
from benchmarks.fixtures import BENCH_DIRECTORY
from build_engines.build import BuildOptions, build_engine
from build_engines.checkpoints.make_checkpoint import make_checkpoint
from build_engines.progress import NoBuildProgress
from inflight.deploy.server.server import Server

MAX_TOKENS = 2 * MOST_DIGITS
Answer = Callable[[Sequence[str], int], list[str]]
"""Answers texts with so many beams."""


@click.command(help=__doc__)
@click.option("--texts", default=192, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--static", "sizes", multiple=True, default=(8, 32), show_default=True, help="Texts of a static batch.")
@out_option("encoders_text2text")
def main(texts: int, rounds: int, sizes: tuple[int, ...], out: Path) -> None:
    checkpoint = _cached("wide-t5", lambda path: write_wide_t5(_cached("trained-t5", write_trained_t5), path))
    engine = BENCH_DIRECTORY / "wide-t5-fp32"
    build_engine(str(checkpoint), engine, BuildOptions("ctranslate2", "fp32"))
    chance, figures = random.Random(0), []
    static = {size: _static(checkpoint, size) for size in sizes}
    with Server(engine) as server, Client(server.grpc_address) as client:

        def served(texts: Sequence[str], beams: int) -> list[str]:
            return list(client.translate(texts, beam_width=beams, max_tokens=MAX_TOKENS))

        for beams in (1, 4):
            ratios, speeds, equal = [], [], []
            for number in range(rounds + 1):  # the first one is a warm-up
                sources = [draw_example(chance).text for _ in range(texts if number else max(sizes))]
                ours, seconds = _timed(served, sources, beams)
                theirs = {size: _timed(answer, sources, beams) for size, answer in static.items()}
                if not number:
                    continue
                best = min(theirs, key=lambda size: theirs[size][1])
                ratios.append(theirs[best][1] / seconds)
                speeds.append(texts / seconds)
                equal.append(sum(map(str.__eq__, ours, theirs[best][0])) / texts)
                others = ", ".join(f"{texts / each[1]:.1f} static {size}" for size, each in theirs.items())
                print(f"{beams} beams, texts/s: {speeds[-1]:.1f} served, {others}", flush=True)
            name = f"{beams} beams" if beams > 1 else "greedy"
            figures += [
                Figure(f"texts/s, served / transformers' best static batches, {name}", ratios, ">= 1.5"),
                Figure(f"equal answers, {name}", equal, ">= 0.99"),
                Figure(f"texts/s, served, {name}", speeds),
            ]
    report(out, figures)


def _cached(name: str, write: Callable[[Path], None]) -> Path:
    path = BENCH_DIRECTORY / name
    if not path.exists():
        make_checkpoint(path, write, NoBuildProgress())
    return path


def _static(checkpoint: Path, size: int) -> Answer:
    import torch
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    model: Any = AutoModelForSeq2SeqLM.from_pretrained(checkpoint)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)

    def answer(texts: Sequence[str], beams: int) -> list[str]:
        found: list[str] = []
        for at in range(0, len(texts), size):
            batch = tokenizer(list(texts[at : at + size]), padding=True, return_tensors="pt")
            ids = model.generate(
                input_ids=batch["input_ids"], attention_mask=batch["attention_mask"],
                num_beams=beams, early_stopping=beams > 1, max_new_tokens=MAX_TOKENS,
            )  # fmt: skip
            found += tokenizer.batch_decode(ids, skip_special_tokens=True)
        return found

    return answer


def _timed(answer: Answer, texts: Sequence[str], beams: int) -> tuple[list[str], float]:
    began = time.perf_counter()
    return answer(texts, beams), time.perf_counter() - began


if __name__ == "__main__":
    main()
