"""Rows for which every side of a comparison computes the same tokens: prompts and answers of known lengths."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from benchmarks.prompts import Prompts

MODEL = "bench"


@dataclass(frozen=True)
class BenchRow:
    """A prompt, its ids, and the exact number of tokens of its answer, for which end tokens are ignored."""

    id: str
    text: str
    ids: list[int]
    max_tokens: int


def equal_rows(prompts: Prompts, count: int, prompt_tokens: int, max_tokens: int) -> list[BenchRow]:
    """Return rows of one length."""
    return [
        BenchRow(f"row-{number:05}", text, ids, max_tokens)
        for number, (text, ids) in enumerate(prompts.next_prompts(count, prompt_tokens))
    ]


def mixed_rows(prompts: Prompts, count: int, seed: int = 0) -> list[BenchRow]:
    """Return prompts of 16 to 128 tokens, with answers of 8 to 128, log-normal around 30, independent of the prompt.

    Sorted by the prompts' lengths, as users sort rows whose answer lengths are unknown.
    """
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        text, ids = prompts.next_prompts(1, draw.randint(16, 128))[0]
        answer = min(128, max(8, round(draw.lognormvariate(3.4, 0.9))))
        rows.append(BenchRow(f"row-{number:05}", text, ids, answer))
    return sorted(rows, key=lambda row: len(row.ids))


def tokens(rows: Sequence[BenchRow]) -> int:
    """Return the number of tokens in all answers."""
    return sum(row.max_tokens for row in rows)


def write_openai(rows: Sequence[BenchRow], path: Path) -> Path:
    """Write the rows as requests in OpenAI's Batch format."""
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            body = {"model": MODEL, "prompt": row.text, "max_tokens": row.max_tokens, "ignore_eos": True}
            request = {"custom_id": row.id, "method": "POST", "url": "/v1/completions", "body": body}
            file.write(json.dumps(request) + "\n")
    return path


def write_sqlite(rows: Sequence[BenchRow], path: Path) -> Path:
    """Write the rows to a table `rows` with the columns `id` and `prompt`."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE rows(id TEXT PRIMARY KEY, prompt TEXT NOT NULL)")
        database.executemany("INSERT INTO rows VALUES (?, ?)", [(row.id, row.text) for row in rows])
    return path
