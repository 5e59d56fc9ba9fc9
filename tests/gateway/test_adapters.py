"""LoRA adapters are models for applications."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from inflight_client import Client, Sampling

from inflight.deploy.repository.configure import DeploymentOptions
from inflight.deploy.server.server import Server
from inflight.gateway.processes import GatewayProcesses
from tests.fixtures.crashes import shared_server
from tests.fixtures.engines import TinyCheckpoint, TinyEngine
from tests.fixtures.gateway import openai_client, running_gateway
from tests.fixtures.gateway_requests import get, post
from tests.fixtures.waiting import wait_until
from tests.runtime.backends.openvino.test_adapters import write_adapter

PROMPT = "Is there tea?"


@pytest.fixture(scope="module")
def adapted_server(
    tiny_engine: TinyEngine, tiny_checkpoint: TinyCheckpoint, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    place, checkpoint = tmp_path_factory.mktemp("adapters"), tiny_checkpoint("llama")
    formal = write_adapter(checkpoint, place / "formal", 4, ("q_proj", "v_proj", "down_proj"), {"lora_alpha": 8})
    lone = place / "rude.safetensors"
    lone.write_bytes((formal / "adapter_model.safetensors").read_bytes())
    adapters: tuple[Path, ...] = (formal, lone, formal)
    with shared_server(tiny_engine("llama"), DeploymentOptions(adapters=adapters)) as running:
        yield running


@pytest.fixture(scope="module")
def gateway(adapted_server: Server) -> Iterator[GatewayProcesses]:
    with running_gateway(adapted_server) as running:
        yield running


def test_each_adapter_is_a_model(gateway: GatewayProcesses, adapted_server: Server) -> None:
    base, *adapters = get(gateway, "/v1/models").json["data"]
    assert [each["id"] for each in adapters] == ["formal", "rude", "formal-3"]
    assert {each["parent"] for each in adapters} == {base["id"]}
    assert get(gateway, "/v1/models/rude").json["parent"] == base["id"]
    with Client(adapted_server.grpc_address) as client:
        for number, name in enumerate([base["id"], "formal", "rude", "formal-3"]):
            body = {"model": name, "prompt": PROMPT, "max_tokens": 9, "temperature": 0}
            answer = post(gateway, "/v1/completions", body).json
            expected = client.generate(PROMPT, max_tokens=9, sampling=Sampling(adapter=number))
            assert (answer["model"], answer["choices"][0]["text"]) == (name, expected.text)
    assert post(gateway, "/tokenize", {"model": "formal", "prompt": PROMPT}).status == 200


def test_an_unknown_adapter_is_named(gateway: GatewayProcesses) -> None:
    answer = post(gateway, "/v1/completions", {"model": "polite", "prompt": PROMPT})
    assert (answer.status, answer.error["param"]) == (404, "model")
    assert "formal, rude, formal-3" in answer.error["message"]


def test_a_batch_is_answered_by_the_adapter_that_its_rows_name(
    gateway: GatewayProcesses, adapted_server: Server
) -> None:
    body = {"model": "formal", "prompt": PROMPT, "max_tokens": 9, "temperature": 0}
    row = {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": body}
    with openai_client(gateway) as client:
        file = client.files.create(file=("rows.jsonl", json.dumps(row).encode()), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
        wait_until(lambda: client.batches.retrieve(batch.id).status == "completed", "the end of the batch")
        output = client.batches.retrieve(batch.id).output_file_id
        assert output
        answer = json.loads(client.files.content(output).content)["response"]["body"]
    alone = post(gateway, "/v1/completions", body).json
    assert (answer["model"], answer["choices"][0]["text"]) == ("formal", alone["choices"][0]["text"])
    other = post(gateway, "/v1/completions", {**body, "model": "rude"}).json
    assert answer["choices"][0]["text"] != other["choices"][0]["text"]
