"""`transformers`' own `generate` in static batches, in its own process: how many jobs are run today."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.batch.rows import BenchRow, tokens

BATCH = 32


class Transformers:
    """A process that holds the checkpoint in bf16, as the engine does, and waits between runs. A batch ends with its
    longest answer."""

    def __init__(self, checkpoint: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, checkpoint), daemon=True)
        self._process.start()
        theirs.close()
        self._connection.recv()

    def run(self, rows: Sequence[BenchRow]) -> float:
        """Return tokens per second, of those that the rows requested, in batches of BATCH in the order of the rows."""
        self._connection.send([(row.ids, row.max_tokens) for row in rows])
        seconds: float = self._connection.recv()
        return tokens(rows) / seconds

    def close(self) -> None:
        self._connection.close()
        self._process.join()


def _work(connection: Connection, checkpoint: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16).eval()

    def generate(rows: list[tuple[list[int], int]]) -> None:
        longest = max(len(ids) for ids, _ in rows)
        prompts = torch.tensor([[0] * (longest - len(ids)) + ids for ids, _ in rows])
        mask = torch.tensor([[0] * (longest - len(ids)) + [1] * len(ids) for ids, _ in rows])
        answer = max(max_tokens for _, max_tokens in rows)
        made = model.generate(
            prompts, attention_mask=mask, max_new_tokens=answer, min_new_tokens=answer, do_sample=False, pad_token_id=0
        )
        if made.shape[1] != longest + answer:
            raise RuntimeError(f"an answer has {made.shape[1] - longest} tokens and not {answer}")

    with torch.inference_mode():
        generate([([5, 6, 7], 4)] * BATCH)
        connection.send("ready")
        while True:
            try:
                rows = connection.recv()
            except EOFError:
                return
            started = time.perf_counter()
            for first in range(0, len(rows), BATCH):
                generate(rows[first : first + BATCH])
            connection.send(time.perf_counter() - started)
