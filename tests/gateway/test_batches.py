"""Files and batches by OpenAI's client, as its users upload, run, read and cancel them."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import openai
import pytest

from inflight.deploy.repository.configure import DeploymentOptions
from inflight.deploy.server.server import Server
from inflight.gateway.processes import GatewayProcesses
from tests.fixtures.engines import TinyEngine
from tests.fixtures.gateway import openai_client, running_gateway
from tests.fixtures.gateway_requests import MODEL, get, post
from tests.fixtures.server import HURRIED_SECONDS, fake_engine
from tests.fixtures.waiting import TIMEOUT, wait_until
from tests.gateway.batches.gateways import run_directly, without_created

ENDED = ("completed", "failed", "expired", "cancelled")


def rows(count: int, max_tokens: int = 6) -> bytes:
    lines = [
        {
            "custom_id": f"row-{number}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {
                "model": MODEL,
                "messages": [{"role": "user", "content": f"tea {number}"}],
                "max_tokens": max_tokens,
                "temperature": 0,
            },
        }
        for number in range(count)
    ]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def changed(content: bytes, number: int, **fields: Any) -> bytes:
    """These rows, with other fields in the body of one."""
    lines = content.splitlines(keepends=True)
    row = json.loads(lines[number])
    row["body"] |= fields
    lines[number] = json.dumps(row).encode() + b"\n"
    return b"".join(lines)


def create(client: openai.OpenAI, content: bytes) -> Any:
    file = client.files.create(file=("rows.jsonl", content), purpose="batch")
    return client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"run": "1"}
    )


def ended(client: openai.OpenAI, batch: Any, seconds: float = TIMEOUT) -> Any:
    wait_until(lambda: client.batches.retrieve(batch.id).status in ENDED, "the end of the batch", seconds)
    return client.batches.retrieve(batch.id)


def ids_of(client: openai.OpenAI, *file_ids: str | None) -> list[str]:
    lines = [
        json.loads(line)
        for file_id in file_ids
        if file_id
        for line in client.files.content(file_id).content.splitlines()
    ]
    return sorted(line["custom_id"] for line in lines)


def test_a_batch_answers_every_row(client: openai.OpenAI) -> None:
    batch = ended(client, create(client, rows(40)))
    assert (batch.status, batch.request_counts.completed, batch.metadata) == ("completed", 40, {"run": "1"})
    lines = [json.loads(line) for line in client.files.content(batch.output_file_id).content.splitlines()]
    assert sorted(line["custom_id"] for line in lines) == sorted(f"row-{number}" for number in range(40))
    for line in lines:
        openai.types.chat.ChatCompletion.model_validate(line["response"]["body"])
    assert batch.id in [each.id for each in client.batches.list(limit=5)]


def test_a_row_has_as_many_choices_as_it_asks_for_and_they_are_the_gateways(client: openai.OpenAI) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "tea 1"}], "max_tokens": 6}
    fields = {"n": 3, "temperature": 1.0, "seed": 7}
    batch = ended(client, create(client, changed(rows(2), 1, **fields)))
    lines = [json.loads(line) for line in client.files.content(batch.output_file_id).content.splitlines()]
    answer = openai.types.chat.ChatCompletion.model_validate(lines[1]["response"]["body"])
    assert len(lines[0]["response"]["body"]["choices"]) == 1
    expected = client.chat.completions.create(**body, **fields)  # type: ignore[call-overload]
    assert [each.message.content for each in answer.choices] == [each.message.content for each in expected.choices]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == expected.usage.completion_tokens


def test_a_cancelled_batch_keeps_what_it_has(client: openai.OpenAI) -> None:
    batch = create(client, rows(400, 200))
    wait_until(lambda: client.batches.retrieve(batch.id).status == "in_progress")
    assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    batch = ended(client, batch)
    assert batch.status == "cancelled"
    expected = sorted(f"row-{number}" for number in range(400))
    assert ids_of(client, batch.output_file_id, batch.error_file_id) == expected


@pytest.mark.parametrize(
    ("count", "kills", "longest"),
    [(700, 2, 0.3), pytest.param(50_000, 20, 6.0, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])],
)
def test_a_batch_goes_on_when_gateway_and_server_are_killed(
    count: int, kills: int, longest: float, tiny_engine: TinyEngine, tmp_path: Path
) -> None:
    content, draw = rows(count), random.Random(kills)
    options = DeploymentOptions(parameters=fake_engine(step_seconds=HURRIED_SECONDS))
    with (
        Server(tiny_engine("llama"), options) as server,
        running_gateway(server, state_dir=str(tmp_path)) as gateway,
        openai_client(gateway, max_retries=20) as client,
    ):
        undisturbed = run_directly(content, server.grpc_address, tmp_path)
        batch = create(client, content)
        for kill in range(kills):
            wait_until(lambda: client.batches.retrieve(batch.id).status != "validating")
            time.sleep(draw.uniform(0.0, longest))
            assert kill or client.batches.retrieve(batch.id).status == "in_progress"
            os.kill((gateway._workers[0].pid, server.pid)[kill % 2], signal.SIGKILL)
            wait_until(lambda: get(gateway, "/ready").status == 200)
            assert client.batches.retrieve(batch.id).status in ("in_progress", "finalizing", "completed")
        batch = ended(client, batch, TIMEOUT + count / 20)
        output = client.files.content(batch.output_file_id).content
    assert (batch.status, batch.request_counts.completed, batch.error_file_id) == ("completed", count, None)
    assert without_created(output) == without_created(undisturbed.read_bytes())


def test_an_invalid_batch_fails_with_its_lines(client: openai.OpenAI) -> None:
    batch = ended(client, create(client, rows(2) + b"no json\n" + rows(1)))
    assert batch.status == "failed"
    assert {each.line for each in batch.errors.data} >= {3, 4}


def test_files_are_kept_listed_and_deleted(client: openai.OpenAI) -> None:
    file = client.files.create(
        file=("a/../é.jsonl", rows(1)), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert (file.bytes, file.purpose) == (len(rows(1)), "batch")
    assert file.expires_at == file.created_at + 3600
    assert client.files.retrieve(file.id).filename == file.filename
    assert file.id in [each.id for each in client.files.list()]
    assert client.files.content(file.id).content == rows(1)
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)


PART = b'--x\r\ncontent-disposition: form-data; name="%s"\r\n\r\n'
FORM = "multipart/form-data; boundary=x"


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/json", b"{}"),
        ("multipart/form-data", b""),
        (FORM, b"garbage"),
        (FORM, b"--x\r\n\r\n"),
        (FORM, PART % b'file"; filename="f' + b"a\r\n--x--\r\n"),
        (FORM, PART % b"purpose" + b"batch\r\n--x--\r\n"),
        (FORM, PART % b"purpose" + b"b" * 100_000 + b"\r\n--x--\r\n"),
        (FORM, (PART % b"purpose" + b"batch\r\n") * 2 + b"--x--\r\n"),
        (FORM, PART % b"purpose" + b"batch\r\n" + (PART % b"file" + b"a\r\n") * 2 + b"--x--\r\n"),
        (FORM, PART % b"nonsense" + b"1\r\n--x--\r\n"),
        (FORM, (PART % b"") * 1000),
        (FORM, b"--x\r\ncontent-disposition: " + b"a" * 20_000),
    ],
    ids=range(12),
)
def test_a_damaged_upload_is_refused(gateway: GatewayProcesses, content_type: str, body: bytes) -> None:
    answer = post(gateway, "/v1/files", body, {"content-type": content_type})
    assert answer.status == 400
    assert answer.error["message"]


@pytest.mark.parametrize("limit", ["0", "10001", "-1", "x", "%C2%B2", "9" * 5000])
def test_a_wrong_limit_is_refused(gateway: GatewayProcesses, limit: str) -> None:
    assert get(gateway, f"/v1/files?limit={limit}").error["param"] == "limit"


@pytest.mark.parametrize("name", ["..", "file-" + "0" * 32, "%2e%2e%2f", "file-x"])
def test_other_ids_are_not_found(gateway: GatewayProcesses, name: str) -> None:
    for path in (f"/v1/files/{name}", f"/v1/files/{name}/content", f"/v1/batches/{name}"):
        assert get(gateway, path).status == 404


@pytest.mark.parametrize(
    "body", [{}, {"input_file_id": 5}, {"endpoint": "/v1/embeddings"}, {"completion_window": "1h"}, {"other": 1}, []]
)
def test_a_batch_that_can_t_be_is_refused(gateway: GatewayProcesses, body: Any) -> None:
    assert post(gateway, "/v1/batches", body).status in (400, 404)
