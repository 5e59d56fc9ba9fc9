"""Answers that meet a condition are given by a larger model, and first answers are kept where it fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from inflight_client import InflightError
from inflight_client.results import Generation, LogProb

from inflight.batch.errors import BatchError
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import Completion
from inflight.batch.job.spec import GenerationDefaults, RefineSpec
from inflight.batch.row_formats.answer_check import Condition
from inflight.batch.runner import JobResult, JobRunner
from tests.batch.row_formats.parsing import answer
from tests.batch.sample_jobs import job_of
from tests.batch.scripted_backend import Behaviour, ScriptedBackend
from tests.fixtures.errors import raises

PROMPTS = ("{} fine", "I don't know", "{} also fine", "I don't know either")
NUMBER = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}


async def first_model(server: ScriptedBackend, prompt: str) -> str | InflightError:
    return prompt


def refined(
    folder: Path, when: str, second: Behaviour, prompts: tuple[str, ...] = PROMPTS, **options: Any
) -> tuple[JobResult, list[dict[str, Any]], ScriptedBackend]:
    schema, build = options.pop("schema", None), options.pop("build", "one")
    sampling = options.pop("sampling", {"seed": 1})
    job = job_of(folder, prompts, refine_with=("big:8001",), **options)
    job = job.model_copy(
        update={"refine": RefineSpec(when=when), "defaults": GenerationDefaults(answer_schema=schema, **sampling)}
    )
    large = ScriptedBackend(second, "big:8001")
    large.model = build
    runner = JobRunner(
        job, JobDirectory.from_output(job.output), backends=[ScriptedBackend(first_model)], refiners=[large]
    )
    result = runner.run()
    return result, [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()], large


def test_rows_that_meet_the_condition_have_the_second_answer_and_both_bills(tmp_path: Path) -> None:
    async def second(server: ScriptedBackend, prompt: str) -> str | InflightError:
        return "Tea"

    prices: dict[str, Any] = {"price_per_million_input": 1e6, "refine_price_per_million_input": 1e7}
    result, answers, large = refined(tmp_path, "regex:^I don't", second, **prices)
    assert sorted(large.asked) == sorted(PROMPTS[1::2])
    assert [each["text"] for each in answers] == [PROMPTS[0], "Tea", PROMPTS[2], "Tea"]
    assert [each.get("refined") for each in answers] == [None, True, None, True]
    assert (answers[1]["refined_because"], answers[1]["first_output_tokens"]) == ("regex", 1)
    counts = result.counts
    assert (counts.input_tokens, counts.refine_input_tokens, counts.refined, counts.retries) == (6, 2, 2, 0)
    manifest = json.loads((tmp_path / "answers.job" / "manifest.json").read_text())
    assert manifest["cost"]["spent"] == 4 + 20
    assert manifest["cost"]["refine_price_per_million_input"] == 1e7
    assert "refine_price_per_million" in manifest["cost_formula"]
    assert manifest["fingerprints"]["model"] == "one"


@pytest.mark.parametrize("code", ["prompt_too_long", "server_unreachable"])
def test_the_first_answer_is_kept_where_the_second_model_fails(tmp_path: Path, code: str) -> None:
    async def second(server: ScriptedBackend, prompt: str) -> str | InflightError:
        return InflightError("no", code)

    result, answers, _ = refined(tmp_path, "regex:^I don't", second, server_wait_timeout=0.5)
    assert result.exit_code == 0
    assert [each["text"] for each in answers] == list(PROMPTS)
    assert [each.get("refine_error") for each in answers] == [None, code, None, code]
    assert (answers[1]["refined"], result.counts.input_tokens, result.counts.refine_input_tokens) == (False, 4, 0)
    assert result.counts.refined == 0


@pytest.mark.parametrize("code", ["permission_denied", "model_not_found", "unsupported_deployment", "host_not_found"])
def test_a_wrong_second_server_ends_the_job(tmp_path: Path, code: str) -> None:
    result, _, large = refined(tmp_path, "regex:^I don't", first_model, build=InflightError("no", code))
    assert (result.code, result.exit_code, large.asked) == (code, 1, [])


def test_a_sampled_second_answer_of_a_wrong_form_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inflight.batch.dispatch.endpoint._RETRY_WAIT_INITIAL", 0.01)

    async def second(server: ScriptedBackend, prompt: str) -> str | InflightError:
        return '{"number": 3}' if len(server.asked) > 1 else "3"

    sampling = {"temperature": 1.0}
    options: dict[str, Any] = {"schema": NUMBER, "max_attempts": 9, "sampling": sampling}
    result, answers, large = refined(tmp_path, "schema", second, ("three",), **options)
    assert (result.exit_code, answers[0]["number"], len(large.asked)) == (0, 3, 2)


def test_a_condition_on_a_schema_needs_one(tmp_path: Path) -> None:
    with raises(BatchError, "input_invalid"):
        refined(tmp_path, "schema", first_model)


def test_answers_of_a_wrong_form_are_refined_at_once_and_never_kept(tmp_path: Path) -> None:
    prompts = ('{"number": 1}', '{"number": "two"}', "three", '{"number": "two"}')

    async def second(server: ScriptedBackend, prompt: str) -> str | InflightError:
        return '{"number": 2}' if "two" in prompt else "3"

    result, answers, _ = refined(tmp_path, "schema", second, prompts, schema=NUMBER, max_attempts=9)
    assert [(each["number"], each.get("refined_because")) for each in answers] == [
        (1, None),
        (2, "schema"),
        (2, "schema"),
    ]
    assert (result.counts.copies, result.counts.refined) == (1, 1)
    assert result.counts.codes == {"answer_invalid": 1}
    assert (result.counts.input_tokens, result.counts.refine_input_tokens) == (5, 2)


@pytest.mark.parametrize(
    ("condition", "result", "met"),
    [
        ("invalid-json", answer("{"), "invalid-json"),
        ("invalid-json", answer("[1]"), ""),
        ("logprob < -1.5", answer(log_probs=(LogProb(-1), LogProb(-3))), "logprob < -1.5"),
        ("logprob < -1.5", answer(log_probs=(LogProb(-1), LogProb(-1))), ""),
        ("logprob < -1.5", answer(), ""),
        ("invalid-json | regex:a|b", answer('"b"'), "regex"),
        ("regex:(?i)sorry", answer("Sorry!"), "regex"),
        ("schema", InflightError("no", "answer_invalid"), "schema"),
        ("regex:.", InflightError("no", "answer_invalid"), ""),
        ("schema", InflightError("no", "overloaded"), ""),
        (
            "logprob<-1|invalid-json",
            Completion(({"message": {"content": "{}"}, "logprobs": {"content": [{"logprob": -2.0}]}},)),
            "logprob < -1",
        ),
        ("invalid-json", Completion(({"message": {"content": None, "tool_calls": [{}]}},)), ""),
        ("invalid-json", answer("NaN"), "invalid-json"),
        ("logprob < 0", Completion(({"text": "x", "logprobs": {"content": 5, "token_logprobs": "x"}},)), ""),
    ],
)
def test_conditions(condition: str, result: Generation | Completion | InflightError, met: str) -> None:
    assert Condition(condition).met(result) == met


@pytest.mark.parametrize("condition", ["", "logprob > 1", "logprob < x", "regex:(", "json", "schema | "])
def test_what_is_no_condition_is_refused(condition: str) -> None:
    with pytest.raises(ValueError, match=r"condition|regular expression"):
        Condition(condition)


def test_another_second_model_than_before_ends_the_job(tmp_path: Path) -> None:
    """Its rows would be of two models."""

    async def second(server: ScriptedBackend, prompt: str) -> str | InflightError:
        server.model = "two"
        return InflightError("gone", "server_gone") if "either" in prompt else "Tea"

    result, _, _ = refined(tmp_path, "regex:^I don't", second, PROMPTS, concurrency=1, order="arrival")
    assert (result.code, result.exit_code) == ("job_mismatch", 1)
    assert result.counts.done < len(PROMPTS)
