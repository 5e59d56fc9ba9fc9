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
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
from inflight_client import Client

from benchmarks.encoders.trained_t5 import MOST_DIGITS, draw_example, write_wide_t5
from benchmarks.figures import Figure, out_option, report
from benchmarks.fixtures import BENCH_DIRECTORY
from build_engines.build import BuildOptions, build_engine
from build_engines.checkpoints.make_checkpoint import make_checkpoint
from build_engines.progress import NoBuildProgress
from inflight.deploy.server.server import Server

MAX_TOKENS = 2 * MOST_DIGITS
STATIC_SIZES = (8, 32)
_SERVED = "served"
Answer = Callable[[list[str], int], list[str]]
"""Answers texts with so many beams."""


@click.command(help=__doc__)
@click.option("--texts", default=192, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@out_option("encoders_text2text")
def main(texts: int, rounds: int, out: Path) -> None:
    checkpoint, engine = BENCH_DIRECTORY / "wide-t5", BENCH_DIRECTORY / "wide-t5-fp32"
    if not checkpoint.exists():
        make_checkpoint(checkpoint, write_wide_t5, NoBuildProgress())
    build_engine(str(checkpoint), engine, BuildOptions("ctranslate2", "fp32"))
    chance, figures = random.Random(0), []
    with Server(engine) as server, Client(server.grpc_address) as client:

        def served(texts: list[str], beams: int) -> list[str]:
            return list(client.translate(texts, beam_width=beams, max_tokens=MAX_TOKENS))

        ways = {_SERVED: served, **_static_ways(checkpoint)}
        for beams, name in ((1, "greedy"), (4, "4 beams")):
            ratios, speeds, equal = [], [], []
            for number in range(rounds + 1):  # the first one is a warm-up
                sources = [draw_example(chance)[0] for _ in range(texts if number else max(STATIC_SIZES))]
                seconds, answers = {}, {}
                for way, answer in ways.items():
                    began = time.perf_counter()
                    answers[way] = answer(sources, beams)
                    seconds[way] = time.perf_counter() - began
                if number:
                    best = min(list(ways)[1:], key=seconds.__getitem__)
                    ratios.append(seconds[best] / seconds[_SERVED])
                    speeds.append(texts / seconds[_SERVED])
                    equal.append(sum(map(str.__eq__, answers[_SERVED], answers[best])) / texts)
                    print(name, {way: f"{each:.2f} s" for way, each in seconds.items()}, flush=True)
            figures += [
                Figure(f"texts/s, served / transformers' best static batches, {name}", ratios, ">= 1.5"),
                Figure(f"equal answers, {name}", equal, ">= 0.99"),
                Figure(f"texts/s, served, {name}", speeds),
            ]
    report(out, figures)


def _static_ways(checkpoint: Path) -> dict[str, Answer]:
    import torch
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    model: Any = AutoModelForSeq2SeqLM.from_pretrained(checkpoint)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)

    def answer(size: int, texts: list[str], beams: int) -> list[str]:
        found: list[str] = []
        for at in range(0, len(texts), size):
            batch = tokenizer(texts[at : at + size], padding=True, return_tensors="pt")
            inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
            ids = model.generate(**inputs, num_beams=beams, early_stopping=beams > 1, max_new_tokens=MAX_TOKENS)
            found += tokenizer.batch_decode(ids, skip_special_tokens=True)
        return found

    return {f"static {size}": partial(answer, size) for size in STATIC_SIZES}


if __name__ == "__main__":
    main()
