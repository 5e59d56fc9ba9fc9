"""`tensorrt_llm_bls` is the ensemble under another name, and refuses the drafts and images of upstream's script."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from inflight_client import Client

from inflight.deploy.repository import model_configs
from inflight.deploy.repository.configure import committed_repository
from inflight.deploy.server.server import Server
from tests.serving.raw_requests import generate


def test_it_has_the_steps_of_the_ensemble() -> None:
    configs = model_configs.load(committed_repository())
    ensemble, scripted = configs["ensemble"], configs["tensorrt_llm_bls"]
    further = {each.name for each in scripted.input} - {each.name for each in ensemble.input}
    for step in scripted.ensemble_scheduling.step:
        for name in [name for name, source in step.input_map.items() if source in further]:
            del step.input_map[name]
    assert scripted.ensemble_scheduling == ensemble.ensemble_scheduling
    assert scripted.output == ensemble.output


def test_it_answers_as_the_ensemble_does(paced_server: Server) -> None:
    answers = []
    for model in ("ensemble", "tensorrt_llm_bls"):
        with Client(paced_server.grpc_address, model=model) as client:
            stream = client.stream("The quick brown fox", max_tokens=9)
            assert len(list(stream)) > 3
            answers.append((stream.text, stream.generation and stream.generation.usage))
    assert answers[0] == answers[1]


@pytest.mark.parametrize(("name", "value"), [("num_draft_tokens", 3), ("use_draft_logits", True)])
def test_it_refuses_drafts(paced_server: Server, name: str, value: Any) -> None:
    body = {"text_input": "tea", "max_tokens": 3}
    status, answer = generate(paced_server.http_address, {**body, name: value}, "tensorrt_llm_bls")
    assert status == 400
    assert name in answer["error"]
    assert "[unsupported_input]" in answer["error"]
    neutral = np.zeros_like(value).item()
    assert generate(paced_server.http_address, {**body, name: neutral}, "tensorrt_llm_bls")[0] == 200
