"""An evaluation at a real server, with the tokens of its answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.spec import GenerationDefaults, RunOptions
from inflight.batch.runner import JobRunner
from inflight.deploy.server.server import Server
from tests.evaluate.golden_sets import golden, scoring


def test_answers_have_their_tokens_and_the_likeliest_others(server: Server, tmp_path: Path) -> None:
    rows = [{"id": n, "prompt": f"tea {n}", "answer": "tea"} for n in range(2)]
    wanted = scoring(golden(tmp_path, rows), tmp_path / "run", ["exact", "regex:."])
    defaults = GenerationDefaults(max_tokens=4, ignore_eos=True, top_log_probs=2)
    running = RunOptions(servers=(server.grpc_address,), checkpoint_seconds=0.05)
    wanted = replace(wanted, job=wanted.job.model_copy(update={"defaults": defaults, "run_options": running}))
    wanted.begin()
    JobRunner(wanted.job, JobDirectory.from_output(wanted.job.output)).run()
    found = wanted.score()
    assert found.scored == 2
    for row in wanted.directory.read_scores(found):
        assert row.tokens is not None
        assert len(row.tokens) == 4
        for token, log_prob, top in row.tokens:
            assert len(top) == 2
            assert top[str(token)] == pytest.approx(log_prob) == max(top.values())  # it is greedy
