"""Rows to score: jobs whose log probabilities are those of torch, and the rules for tokens that are scored."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.spec import EncodeSpec, InputSpec, Job, OutputSpec, RunOptions
from inflight.batch.runner import JobRunner
from inflight.batch.verify.checker import verify
from inflight.deploy.server.server import Server
from tests.fixtures.engines import TinyCheckpoint

TEXT = "Leaves that were steamed, rolled and dried, and hot water. " * 12
WINDOW = 40


def run(folder: Path, servers: Sequence[str], rows: Sequence[dict[str, Any]], out: str = "scores.jsonl") -> Path:
    """A whole job over these rows; returns its output."""
    source = folder / "rows.jsonl"
    source.write_text("".join(json.dumps({"id": place, **row}) + "\n" for place, row in enumerate(rows)))
    job = Job(
        input=InputSpec(address=str(source), id="id"),
        output=OutputSpec(address=str(folder / out)),
        encode=EncodeSpec(task="score", max_length=WINDOW),
        run_options=RunOptions(servers=tuple(servers), checkpoint_seconds=0.05, max_attempts=2),
    )
    directory = JobDirectory.from_output(job.output)
    JobRunner(job, directory).run()
    assert verify(directory).complete
    return folder / out


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_log_probabilities_are_those_of_torch(server: Server, tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(tiny_checkpoint("llama"))
    model: Any = AutoModelForCausalLM.from_pretrained(tiny_checkpoint("llama"), dtype=torch.float32)
    choices = [" tea", " a cup of it", "unity"]

    def expected(ids: list[int], begin: int) -> tuple[float, bool]:
        rows = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)[begin - 1 : -1]
        after = torch.tensor(ids[begin:])
        return float(rows.gather(1, after[:, None]).sum()), bool((rows.argmax(-1) == after).all())

    with torch.no_grad():
        ids = tokenizer(TEXT)["input_ids"]
        begin = len(tokenizer("Here is")["input_ids"])
        likely = [*ids[:5], int(model(torch.tensor([ids[:5]])).logits[0, -1].argmax())]
        texts = [expected(tokenizer(f"Here is {each}")["input_ids"], begin) for each in choices]
        windows = [ids[at : at + WINDOW] for at in range(0, len(ids) - 1, WINDOW - 1)]
        whole = sum(expected(each, 1)[0] for each in windows)
        greedy = [expected(likely, 5), expected(ids[:6], 5)]
    rows: list[dict[str, Any]] = [
        {"prompt": "Here is ", "continuations": choices},
        {"prompt": TEXT},
        {"prompt": ids[:5], "continuations": [likely[5:], ids[5:6]]},
    ]
    chosen, text, given = lines_of(run(tmp_path, [server.grpc_address], rows))
    assert chosen["log_probs"] == pytest.approx([each for each, _ in texts], abs=1e-3)
    assert chosen["bytes"] == [len(each) for each in choices]
    assert text["log_probs"] == pytest.approx([whole], abs=1e-2)
    assert text["tokens"] == [len(ids) - 1]
    assert given["log_probs"] == pytest.approx([each for each, _ in greedy], abs=1e-3)
    assert given["is_greedy"] == [True, False]
