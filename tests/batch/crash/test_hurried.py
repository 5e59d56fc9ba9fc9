"""Jobs that share a fast server, with a kill in the middle: each row has the answer to its own prompt."""

from __future__ import annotations

import json
import random
import signal
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from inflight.batch.dispatch.prefix_order import SHARED_PREFIX_CHARACTERS
from inflight.batch.job.directory import JobDirectory
from inflight.batch.verify.checker import verify
from inflight.deploy.server.server import Server
from inflight.runtime.engine.fake import traced_log_prob
from tests.batch.crash.job_processes import JobProcesses
from tests.batch.crash.jobs import WORDS
from tests.fixtures.engines import TinyEngine
from tests.fixtures.waiting import wait_until

LONGEST = 240.0
"""Seconds that a job may take on a busy machine."""


def write_requests(path: Path, count: int) -> dict[str, dict[str, Any]]:
    """Requests of OpenAI's form, some with a long beginning that others share; gives the body of each by its id."""
    draw = random.Random(count)
    beginnings = ["", "", *(" ".join(draw.choices(WORDS, k=SHARED_PREFIX_CHARACTERS // 4)) for _ in range(3))]
    bodies = {
        f"row-{number:05}": {
            "model": "ensemble",
            "prompt": " ".join([draw.choice(beginnings), *draw.choices(WORDS, k=draw.randint(1, 9))]),
            "max_tokens": draw.randint(1, 12),
            "seed": draw.randint(0, 7),
            "logprobs": 0,
            "ignore_eos": True,
        }
        for number in range(count)
    }
    rest = {"method": "POST", "url": "/v1/completions"}
    path.write_text("".join(json.dumps({"custom_id": id, "body": body, **rest}) + "\n" for id, body in bodies.items()))
    return bodies


def expected(bodies: dict[str, dict[str, Any]], tokenizer: Tokenizer) -> dict[str, dict[str, Any]]:
    """The choice in each answer: the prompt's tokens over and over, from the one that the seed says."""
    choices = {}
    prompts = tokenizer.encode_batch([body["prompt"] for body in bodies.values()])
    for (id, body), prompt in zip(bodies.items(), prompts, strict=True):
        begin = body["seed"] % len(prompt.ids)
        ids = list(islice(cycle(prompt.ids), begin, begin + body["max_tokens"]))
        tokens = {
            "tokens": [f"token_id:{id}" for id in ids],
            "token_logprobs": [*map(traced_log_prob, ids)],
            "top_logprobs": [{f"token_id:{id}": traced_log_prob(id)} for id in ids],
            "text_offset": None,
        }
        choices[id] = {"text": tokenizer.decode(ids), "index": 0, "logprobs": tokens, "finish_reason": "length"}
    return choices


@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_each_row_has_its_own_answer(
    count: int, lives: JobProcesses, hurried_server: Server, tiny_engine: TinyEngine, tmp_path: Path
) -> None:
    bodies = write_requests(tmp_path / "rows.jsonl", count)
    choices = expected(bodies, Tokenizer.from_file(str(tiny_engine("llama") / "tokenizer.json")))
    address = f"{hurried_server.grpc_address},metrics=http://{hurried_server.metrics_address}/metrics"
    asked = (tmp_path / "rows.jsonl", "--server", address, "--checkpoint-seconds", "0.1")
    best, arrival = tmp_path / "best.jsonl", tmp_path / "arrival.jsonl"
    killed = lives.start("run", *asked, "--out", best, "--order", "prefix", "--priority", "-1")
    other = lives.start("run", *asked, "--out", arrival, "--order", "arrival", "--priority", "1")
    wait_until(lambda: best.exists() and best.read_bytes().count(b"\n") > count / 3)
    killed.send(signal.SIGKILL)
    assert killed.wait() == -9
    resumed = lives.start("resume", best)
    assert (other.wait(LONGEST), resumed.wait(LONGEST)) == (0, 0), other.said + resumed.said
    for out in (best, arrival):
        records = map(json.loads, out.read_text().splitlines())
        answered = {record["custom_id"]: record["response"]["body"]["choices"][0] for record in records}
        assert list(answered) == list(bodies)
        wrong = {id: (choice, choices[id]) for id, choice in answered.items() if choice != choices[id]}
        assert not wrong, f"{len(wrong)} rows of {out.name} are wrong: {next(iter(wrong.items()))}"
        assert verify(JobDirectory.find(out)).complete
