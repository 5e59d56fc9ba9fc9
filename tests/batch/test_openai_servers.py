"""The same jobs against each kind of server of OpenAI's protocol, with what goes wrong there."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any, Literal

import pytest

from inflight.batch.errors import BatchError
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.spec import (
    EncodeSpec,
    GenerationDefaults,
    InputSpec,
    Job,
    OutputSpec,
    RefineSpec,
    RunOptions,
)
from inflight.batch.runner import JobResult, JobRunner
from tests.fixtures.errors import raises
from tests.standins.openai_servers import Fault, StandIn, openai_server
from tests.standins.openai_servers.kinds import KINDS

NUMBER = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "number", "schema": NUMBER}}
TOOLS = [{"type": "function", "function": {"name": "brew", "parameters": {"type": "object"}}}]


def request(name: str, url: str = "/v1/chat/completions", **fields: Any) -> dict[str, Any]:
    prompt = {"prompt": f"About {name}"} if url == "/v1/completions" else {
        "messages": [{"role": "user", "content": f"About {name}"}]
    }  # fmt: skip
    return {"custom_id": name, "method": "POST", "url": url, "body": {"model": "any", **prompt, **fields}}


def job_at(
    folder: Path, server: StandIn, rows: list[dict[str, Any]], *, out: str = "answers.jsonl", **parts: Any
) -> Job:
    """A job over these rows: JSON lines, or CSV if they have no body."""
    plain = "body" not in rows[0]
    path = folder / ("rows.csv" if plain else "rows.jsonl")
    with path.open("w", newline="") as file:
        if plain:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        else:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    running = {"servers": (server.address,), "checkpoint_seconds": 0.05, "max_attempts": 2, "server_wait_timeout": 5.0}
    return Job(
        input=InputSpec(address=str(path), **({"id": "id", **parts.pop("input", {})} if plain else {})),
        output=OutputSpec(address=str(folder / out)),
        run_options=RunOptions.model_validate(running | parts.pop("running", {})),
        **parts,
    )


def run(job: Job) -> tuple[JobResult, list[dict[str, Any]], list[dict[str, Any]], list[str]]:
    """The result, the answers, the errors, and the messages."""
    directory, messages = JobDirectory.from_output(job.output), list[str]()
    result = JobRunner(job, directory, on_message=messages.append).run()
    lines = [path.read_text().splitlines() if path.exists() else [] for path in (
        Path(job.output.address), Path(job.output.address).with_suffix(".errors.jsonl")
    )]  # fmt: skip
    answers, errors = ([json.loads(line) for line in each] for each in lines)
    return result, answers, errors, messages


@pytest.mark.parametrize("kind", KINDS)
def test_requests_are_answered_with_the_same_ids_and_kinds_of_records(tmp_path: Path, kind: str) -> None:
    rows = [
        request("chat", temperature=0),
        request("text", "/v1/completions", max_tokens=2),
        request("form", response_format=FORMAT),
        request("call", tools=TOOLS),
        request("wrong", stream=True),
        request("copy", temperature=0, messages=rows_messages("chat")),
    ]
    with openai_server(kind) as server:
        result, answers, errors, _ = run(job_at(tmp_path, server, rows))
        assert [each.body["model"] for each in server.requests] == ["tea"] * 4
    assert {each["custom_id"] for each in answers} == {"chat", "text", "form", "call", "copy"}
    assert [(each["custom_id"], each["response"]["status_code"]) for each in errors] == [("wrong", 400)]
    bodies = {each["custom_id"]: each["response"]["body"] for each in answers}
    assert {body["object"] for body in bodies.values()} == {"chat.completion", "text_completion"}
    assert all(body["model"] == "any" and body["usage"]["completion_tokens"] for body in bodies.values())
    assert len({body["id"] for body in bodies.values()}) == 5
    assert bodies["chat"]["choices"][0]["message"]["content"] == "Answer to About chat"
    assert bodies["copy"]["choices"] == bodies["chat"]["choices"]
    assert json.loads(bodies["form"]["choices"][0]["message"]["content"]) == {"number": 1}
    assert bodies["call"]["choices"][0]["message"]["tool_calls"][0]["id"].startswith("call_")
    assert (result.counts.copies, result.counts.empty) == (1, 0)


def rows_messages(name: str) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = request(name)["body"]["messages"]
    return messages


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_a_table_are_answered(tmp_path: Path, kind: str) -> None:
    """With a schema, whose properties are columns; and an answer that ignores it is an error."""
    rows = [{"id": name, "prompt": f"Count {name}"} for name in ("apples", "pears", "plums")]
    with openai_server(kind, faults=[Fault("schema")]) as server:
        job = job_at(
            *(tmp_path, server, rows),
            out="answers.csv",
            defaults=GenerationDefaults(generation_config="model", temperature=0, answer_schema=NUMBER),
            running={"concurrency": 1, "order": "arrival"},
        )
        result, _, errors, _ = run_csv(job)
    assert [each["code"] for each in errors] == ["answer_invalid"]
    table = list(csv.DictReader((tmp_path / "answers.csv").read_text().splitlines()))
    assert [(row["id"], row["number"], row["text"]) for row in table] == [
        (name, "1", '{"number": 1}') for name in ("pears", "plums")
    ]
    assert result.counts.output_tokens > 0


def run_csv(job: Job) -> tuple[JobResult, list[dict[str, Any]], list[dict[str, Any]], list[str]]:
    directory, messages = JobDirectory.from_output(job.output), list[str]()
    result = JobRunner(job, directory, on_message=messages.append).run()
    errors = Path(job.output.address).with_suffix(".errors.jsonl")
    return result, [], [json.loads(line) for line in errors.read_text().splitlines()], messages


@pytest.mark.parametrize(
    ("kind", "defaults", "name"),
    [
        ("openai", {"top_k": 5}, "top_k"),
        ("tgi", {"min_tokens": 5}, "min_tokens"),
        ("ollama", {"ignore_eos": True}, "ignore_eos"),
        ("vllm", {"adapter": 1}, "adapter"),
    ],
)
def test_an_option_that_the_server_does_not_have_is_refused_before_the_first_row(
    tmp_path: Path, kind: str, defaults: dict[str, Any], name: str
) -> None:
    with openai_server(kind) as server:
        job = job_at(tmp_path, server, [{"id": "a", "prompt": "Tea?"}], defaults=GenerationDefaults(**defaults))
        result, answers, errors, _ = run(job)
        assert not server.requests
    assert (result.code, result.exit_code) == ("unsupported_deployment", 1)
    assert name in result.message
    assert not answers
    assert not errors


def test_an_option_without_a_field_is_refused_for_requests_too(tmp_path: Path) -> None:
    with openai_server("vllm") as server, raises(BatchError, "input_invalid", naming=("adapter",)):
        run(job_at(tmp_path, server, [request("a")], defaults=GenerationDefaults(adapter=1)))


def test_a_field_of_one_row_is_refused_there(tmp_path: Path) -> None:
    rows = [request("a", top_k=5), request("b"), request("c", n=2)]
    with openai_server("tgi") as server:
        result, answers, errors, _ = run(job_at(tmp_path, server, rows))
    assert [each["custom_id"] for each in answers] == ["b"]
    assert [each["response"]["body"]["error"]["code"] for each in errors] == ["unsupported_parameter"] * 2
    assert result.counts.codes == {"unsupported_input": 2}


def test_a_field_of_a_wrong_form_is_its_row_s_error(tmp_path: Path) -> None:
    rows = [request("a", response_format={"type": "json_schema", "json_schema": "number"}), request("b")]
    with openai_server("tgi") as server:
        result, answers, errors, _ = run(job_at(tmp_path, server, rows))
    assert [each["custom_id"] for each in answers] == ["b"]
    assert [each["custom_id"] for each in errors] == ["a"]
    assert result.exit_code == 3


@pytest.mark.parametrize(
    ("named", "model", "asked"), [("", None, None), ("", "milk", "milk"), ("?model=milk", "tea", "milk")]
)
def test_one_of_several_models_is_named_by_the_address_or_by_the_option(
    tmp_path: Path, named: str, model: str | None, asked: str | None
) -> None:
    with openai_server("vllm", ("tea", "milk")) as server:
        running = {"servers": (server.address + named,), "model": model}
        result, answers, _, _ = run(job_at(tmp_path, server, [request("a")], running=running))
        assert {each.body["model"] for each in server.requests} == ({asked} if asked else set())
    assert (result.code, len(answers)) == (("", 1) if asked else ("unsupported_deployment", 0))


def test_the_second_model_has_its_own_name_and_gives_no_scores(tmp_path: Path) -> None:
    """The first model's are in no record, since no row asks for them."""
    rows = [request(name, messages=rows_messages("chat"), temperature=0) for name in "ab"]
    with openai_server("vllm") as server, openai_server("vllm", ("large",)) as large:
        running = {"model": "tea", "refine_with": (large.address,)}
        for when, many in (("logprob < -99", 0), ("logprob < -0.1", 1)):
            job = job_at(tmp_path, server, rows, out=f"{many}.jsonl", running=running, refine=RefineSpec(when=when))
            result, answers, _, _ = run(job)
            assert (result.exit_code, result.counts.copies, len(large.requests)) == (0, 1, many)
            choices = [each["response"]["body"]["choices"] for each in answers]
            assert choices[0] == choices[1]
            assert choices[0][0]["logprobs"] is None
        assert server.requests[0].body["logprobs"]
        assert not large.requests[0].body.get("logprobs")


@pytest.mark.parametrize(
    ("task", "priority", "field", "value"),
    [
        *(("generate", -5, "service_tier", "flex"), ("generate", 7, "service_tier", "priority")),
        *(("embed", -5, "priority", -5), ("embed", 5000, "priority", 1000)),
    ],
)
def test_a_gateway_gets_the_priority(tmp_path: Path, task: Any, priority: int, field: str, value: Any) -> None:
    parts: dict[str, Any] = {} if task == "generate" else {"encode": EncodeSpec(task=task), "input": {"prompt": "text"}}
    with openai_server("inflight") as server:
        rows = [{"id": "a", "text": "tea", "prompt": "tea"}]
        result, _, _, _ = run(job_at(tmp_path, server, rows, running={"priority": priority}, **parts))
        assert server.requests[-1].body[field] == value
    assert result.exit_code == 0


@pytest.mark.parametrize(
    "fault",
    [
        Fault("status", 429, {"retry-after": "1"}),
        Fault("status", 503),
        Fault("status", 529),
        Fault("status", 500),
        Fault("cut"),
        Fault("garbage"),
    ],
)
def test_rows_outlast_what_passes(tmp_path: Path, fault: Fault) -> None:
    rows = [request(str(number)) for number in range(8)]
    with openai_server("vllm", faults=[None, fault, fault]) as server:
        result, answers, _, _ = run(job_at(tmp_path, server, rows, running={"concurrency": 2}))
    assert (result.exit_code, len(answers)) == (0, 8)
    assert len({each["custom_id"] for each in answers}) == 8


@pytest.mark.parametrize(
    ("kind", "task", "can"),
    [
        *(("vllm", "embed", True), ("openai", "embed", True), ("tgi", "embed", False)),
        *(
            ("vllm", "rerank", True),
            ("sglang", "rerank", True),
            ("ollama", "rerank", False),
            ("other", "rerank", False),
        ),
        *(("inflight", "classify", True), ("vllm", "classify", True), ("ovms", "classify", False)),
    ],
)
def test_texts_are_encoded_where_the_server_can(
    tmp_path: Path, kind: str, task: Literal["embed", "rerank", "classify"], can: bool
) -> None:
    """The kind `other` may have the route, and says that it has not."""
    rows = [{"id": str(n), "text": f"tea {n}", "query": f"tea {n}", "documents": '["a", "b c"]'} for n in range(5)]
    with openai_server(kind) as server:
        column = "query" if task == "rerank" else "text"
        job = job_at(tmp_path, server, rows, encode=EncodeSpec(task=task), input={"prompt": column})
        result, answers, _, _ = run(job)
        assert bool(server.requests) == can
    if not can:
        assert result.code == "unsupported_deployment"
        return
    assert result.counts.ok == 5
    if task == "embed":
        assert [len(each["embedding"]) for each in answers] == [2] * 5
        assert result.counts.input_tokens == 10
    elif task == "rerank":
        assert all(sorted(each["ranking"]) == [0, 1] for each in answers)
    else:
        assert {each["label"] for each in answers} == {"good"}
        assert all(len(each["scores"]) == 2 for each in answers)


def test_a_job_goes_on_at_a_server_of_the_same_kind_and_model_alone(tmp_path: Path) -> None:
    rows = [request("a"), request("b")]
    with openai_server("vllm", faults=[None, Fault("silent")]) as server:
        job = job_at(tmp_path, server, rows, running={"concurrency": 1, "row_timeout": 0.3, "max_attempts": 1})
        result, answers, errors, _ = run(job)
    assert (len(answers), len(errors), result.exit_code) == (1, 1, 3)
    for kind, models, code in (("sglang", ("tea",), "job_mismatch"), ("vllm", ("tea",), "")):
        with openai_server(kind, models) as server:
            again = job.model_copy(update={"run_options": RunOptions(servers=(server.address,))})
            end = JobRunner(again, JobDirectory.from_output(job.output)).run([])
        assert end.code == code
    assert end.exit_code == 0


@pytest.mark.parametrize("url", ["/v1/chat/completions", "/v1/completions"])
def test_a_server_with_one_route_alone_is_probed_there(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that is refused without a reason of its own is an error, since a simple request is answered."""
    monkeypatch.setitem(KINDS, "other", KINDS["other"]._replace(routes=(url,)))
    with openai_server("other", faults=[None, Fault("status", 400), None]) as server:
        running = {"concurrency": 1, "order": "arrival"}
        result, answers, errors, _ = run(job_at(tmp_path, server, [request(n, url) for n in "abc"], running=running))
        assert {each.path for each in server.requests} == {url}
    assert (len(answers), len(errors), result.exit_code) == (2, 1, 3)


def test_a_key_is_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEA_KEY", "secret-leaf")
    with openai_server("openai", key="secret-leaf") as server:
        job = job_at(
            tmp_path, server, [request("a")], running={"servers": (server.address + "?key=TEA_KEY&model=tea",)}
        )
        result, _, _, messages = run(job)
    assert result.exit_code == 0
    stored = b"".join(path.read_bytes() for path in (tmp_path / "answers.job").iterdir() if path.is_file())
    assert b"secret-leaf" not in stored
    assert "secret-leaf" not in "".join(messages)
