"""The examples of docs/examples: what they ask of our command, and what they make of how it ends."""

from __future__ import annotations

import ast
import fnmatch
import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import boto3
import botocore.session
import pytest
from botocore.validate import ParamValidator
from moto import mock_aws

from inflight.batch.job.counts import Counts
from inflight.batch.reporting.progress import JobState
from inflight.batch.runner import JobResult
from inflight.commands.batch import run
from tests.fixtures.engines import TinyEngine

EXAMPLES = Path(__file__).resolve().parents[1] / "docs/examples"
STOPPED = JobResult(JobState.STOPPED, Counts()).exit_code
ROWS_FAILED = JobResult(JobState.FINISHED, Counts(ok=1, error=1)).exit_code
ENDS = {
    "done": JobResult(JobState.FINISHED, Counts(ok=1)).exit_code,
    "rows failed": ROWS_FAILED,
    "stopped": STOPPED,
    "failed": JobResult(JobState.FAILED, Counts()).exit_code,
    "cancelled": JobResult(JobState.CANCELLED, Counts()).exit_code,
    "wrong usage": 2,
}


@pytest.fixture(scope="module")
def definition() -> dict[str, Any]:
    values: dict[str, Any] = json.loads((EXAMPLES / "aws_batch_job_definition.json").read_text())
    return values


def test_the_job_definition_is_one_of_aws_batch(definition: dict[str, Any]) -> None:
    """By Amazon's own description of the service, which knows names, types and limits."""
    service = botocore.session.get_session().get_service_model("batch")
    shape = service.operation_model("RegisterJobDefinition").input_shape
    assert shape is not None
    report = ParamValidator().validate(definition, shape)
    assert not report.has_errors(), report.generate_report()
    wrong = {**definition, "retryStrategy": {"attempts": "ten"}}
    assert ParamValidator().validate(wrong, shape).has_errors()


def test_the_job_definition_can_be_registered(definition: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        batch: Any = boto3.client("batch", region_name="eu-central-1")
        batch.register_job_definition(**definition)
        (kept,) = batch.describe_job_definitions(jobDefinitionName="inflight-batch")["jobDefinitions"]
    assert kept["retryStrategy"]["attempts"] == definition["retryStrategy"]["attempts"]
    assert len(kept["retryStrategy"]["evaluateOnExit"]) == len(definition["retryStrategy"]["evaluateOnExit"])
    assert kept["containerProperties"]["command"] == definition["containerProperties"]["command"]


@pytest.mark.parametrize(
    ("end", "reason", "action"),
    [
        ("stopped", "Essential container in task exited", "RETRY"),
        ("failed", "Essential container in task exited", "EXIT"),
        ("rows failed", "Essential container in task exited", "EXIT"),
        ("cancelled", "Essential container in task exited", "EXIT"),
        ("wrong usage", "Essential container in task exited", "EXIT"),
        (None, "Host EC2 (instance i-0123456789abcdef0) terminated.", "RETRY"),
    ],
)
def test_only_what_goes_on_is_retried(definition: dict[str, Any], end: str | None, reason: str, action: str) -> None:
    """As AWS Batch goes through the list: the first entry that fits decides."""
    values = {"onStatusReason": reason, "onReason": "", "onExitCode": str(ENDS[end]) if end else ""}
    decided = next(
        entry["action"]
        for entry in definition["retryStrategy"]["evaluateOnExit"]
        if all(fnmatch.fnmatchcase(values[name], entry[name]) for name in values if name in entry)
    )
    assert decided == action


def test_the_job_definition_s_command_is_one_of_ours(definition: dict[str, Any]) -> None:
    parameters = definition["parameters"]
    command = [
        parameters[part.removeprefix("Ref::")] if part.startswith("Ref::") else part
        for part in definition["containerProperties"]["command"]
    ]
    assert command[:3] == ["inflight", "batch", "run"]
    asked = run.command.make_context("run", command[3:]).params
    assert asked["input_address"] == parameters["input"]
    assert asked["ephemeral"] == "/engines/my-engine"
    assert float(asked["drain_seconds"]) < 30, "AWS Batch kills a container 30 seconds after SIGTERM"


@pytest.mark.parametrize("name", ["prefect_flow.py", "airflow_dag.py"])
def test_orchestrators_know_our_exit_codes_and_options(name: str) -> None:
    """They run for real under `make test-orchestrators`."""
    tree = ast.parse((EXAMPLES / name).read_text())
    codes = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "(DONE, ROWS_FAILED, STOPPED)"
    ]
    assert codes == [(0, ROWS_FAILED, STOPPED)]
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    options = {option for parameter in run.command.params for option in parameter.opts}
    used = {text for text in texts if text.startswith("--")}
    assert {"--out", "--server", "--allow-failed"} <= used <= options


def test_the_catalogue_gets_its_descriptions_and_its_bill(tmp_path: Path, tiny_engine: TinyEngine) -> None:
    """Whole with SmolLM2: `make catalogue`."""
    command = [sys.executable, str(EXAMPLES / "catalogue.py"), "--out", str(tmp_path), "--products", "12"]
    done = subprocess.run([*command, "--engine", str(tiny_engine("llama"))], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        rows = shop.execute("SELECT sku, description, tokens FROM products ORDER BY sku").fetchall()
        prompts = shop.execute("SELECT product, brand FROM products").fetchall()
    assert len(rows) == len(set(prompts)) == 12
    assert all(description and tokens > 0 for _, description, tokens in rows)
    total = sum(tokens for *_, tokens in rows)
    manifest = json.loads((tmp_path / "shop.job/manifest.json").read_text())
    assert manifest["output_tokens"] == total
    assert manifest["cost"]["spent"] > 0
    assert "Cost" in done.stdout
