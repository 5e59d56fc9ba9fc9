"""LoRA adapters are models for applications."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from inflight_client import Client, Sampling

from inflight.deploy.repository.configure import DeploymentOptions
from inflight.deploy.server.server import Server
from inflight.gateway.key_editing import add_key
from inflight.gateway.key_file import ApiKey
from inflight.gateway.processes import GatewayProcesses
from tests.fixtures.crashes import shared_server
from tests.fixtures.engines import TinyCheckpoint, TinyEngine
from tests.fixtures.gateway import openai_client, running_gateway
from tests.fixtures.gateway_requests import Answer, get, post
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
    directory = place / "more"
    directory.mkdir()
    (directory / "broken").mkdir()
    for name in ("polite v2", "polite v3"):
        write_adapter(
            checkpoint, directory / name, 9 + len(os.listdir(directory)), ("k_proj", "o_proj"), {"lora_alpha": 9}
        )
    options = DeploymentOptions(adapters=(formal, lone, formal), adapter_directory=directory)
    with shared_server(tiny_engine("llama"), options) as running:
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
        digests = client.deployment().served["adapters_sha256"]
        assert digests["formal"] == digests["formal-3"] != digests["rude"]
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


def load(gateway: GatewayProcesses, name: Any, directory: Any = None, **headers: str) -> Answer:
    return post(gateway, "/v1/load_lora_adapter", {"lora_name": name, "lora_path": directory}, headers)


def texts(gateway: GatewayProcesses, *models: str) -> list[str]:
    body = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0}
    answers = [post(gateway, "/v1/completions", {**body, "model": model}) for model in models]
    return [answer.json["choices"][0]["text"] for answer in answers]


def test_an_adapter_is_loaded_beside_running_answers(gateway: GatewayProcesses, adapted_server: Server) -> None:
    """It is a model for all processes of the gateway, and the others are as they were."""
    base = get(gateway, "/v1/models").json["data"][0]["id"]
    before = texts(gateway, base, "formal")
    with Client(adapted_server.grpc_address) as client:
        kept = client.generate(PROMPT, max_tokens=400, sampling=Sampling(adapter=1, end_id=-1)).text
        with client.stream(PROMPT, max_tokens=400, sampling=Sampling(adapter=1, end_id=-1)) as stream:
            next(stream)
            loaded = load(gateway, "polite", "polite v2")
            assert (loaded.status, loaded.json["id"], loaded.json["parent"]) == (200, "polite", base)
            assert stream.read().text == kept
    assert load(gateway, "polite v3").status == 200
    own = texts(gateway, "polite", "polite v3")
    assert len({*before, *own}) == 4
    assert texts(gateway, base, "formal") == before
    names = {each["id"] for each in get(gateway, "/v1/models").json["data"]}
    assert {"polite", "polite v3"} <= names
    with running_gateway(adapted_server, state_dir=gateway._settings.state_dir) as other:
        assert texts(other, "polite") == own[:1]
    for name in ("polite", "polite v3"):
        assert post(gateway, "/v1/unload_lora_adapter", {"lora_name": name}).status == 200
    assert post(gateway, "/v1/completions", {"model": "polite", "prompt": PROMPT}).status == 404
    assert post(gateway, "/v1/unload_lora_adapter", {"lora_name": "polite"}).status == 404


@pytest.mark.parametrize(
    ("name", "directory", "code", "param"),
    [
        ("missing", None, "invalid_value", None),
        ("broken", None, "invalid_value", None),
        ("formal", "polite v2", "invalid_value", "lora_name"),
        ("x", "../formal", "invalid_value", "lora_path"),
        ("x", "..", "invalid_value", "lora_path"),
        ("", None, "invalid_value", "lora_name"),
        (7, None, "invalid_value", "lora_name"),
    ],
)
def test_an_adapter_that_can_not_be_loaded_is_refused(
    name: Any, directory: Any, code: str, param: str | None, gateway: GatewayProcesses
) -> None:
    answer = load(gateway, name, directory)
    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, code, param)
    assert "x" not in {each["id"] for each in get(gateway, "/v1/models").json["data"]}


def test_a_server_without_a_directory_loads_none(model_gateway: GatewayProcesses) -> None:
    assert load(model_gateway, "formal").error["code"] == "unsupported_parameter"


def test_a_key_without_trust_loads_none(adapted_server: Server, tmp_path: Path) -> None:
    key = add_key(tmp_path / "keys.json", ApiKey.new("app"))
    with running_gateway(adapted_server, key_file=str(tmp_path / "keys.json")) as keyed:
        assert load(keyed, "polite v2", authorization=f"Bearer {key}").error["code"] == "permission_denied"
