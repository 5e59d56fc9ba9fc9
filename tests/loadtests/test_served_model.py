"""Whose tokenizer prompts are made with: the very one of the server, or none."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from loadtests.plan import LoadPlan
from loadtests.served_model import tokenizer_hash, with_server_tokenizer
from loadtests.workloads.spec import WorkloadSpec
from tests.fixtures.engines import TinyEngine


@pytest.fixture
def served(tiny_engine: TinyEngine) -> dict[str, Any]:
    engine = tiny_engine("llama")
    digest = json.loads((engine / "engine.json").read_text())["files"]["tokenizer.json"]["sha256"]
    return {"engine_dir": str(engine), "tokenizer": digest}


def test_prompts_are_made_with_the_tokenizer_of_the_server_where_it_is_here(served: dict[str, Any]) -> None:
    plan = with_server_tokenizer(LoadPlan(), served)
    assert plan.workload.tokenizer == served["engine_dir"]
    assert tokenizer_hash(plan) == served["tokenizer"]


def test_another_file_in_its_place_or_what_the_user_said_is_left_alone(served: dict[str, Any], tmp_path: Path) -> None:
    elsewhere = {**served, "engine_dir": str(tmp_path)}
    assert with_server_tokenizer(LoadPlan(), elsewhere) == LoadPlan()
    (tmp_path / "tokenizer.json").write_text("{}")
    assert with_server_tokenizer(LoadPlan(), elsewhere) == LoadPlan()
    broken = {"engine_dir": str(tmp_path), "tokenizer": hashlib.sha256(b"{}").hexdigest()}
    assert with_server_tokenizer(LoadPlan(), broken) == LoadPlan(), (
        "of a tokenizer that can't be read no prompts are made"
    )
    specs: tuple[dict[str, Any], ...] = ({"tokenizer": "mine"}, {"prompts": "file"}, {"tokens_per_word": 2.0})
    for spec in specs:
        plan = LoadPlan(workload=WorkloadSpec(**spec))
        assert with_server_tokenizer(plan, served) == plan
    assert with_server_tokenizer(LoadPlan(), {}) == LoadPlan()
    assert tokenizer_hash(LoadPlan()) is None
