"""Rows to score: jobs whose log probabilities are those of torch, and the rules for tokens that are scored."""

from __future__ import annotations

import asyncio
import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from inflight_client import InflightError

from inflight.batch.dispatch.scoring import PromptToken, score
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import ScoreRequest
from inflight.batch.job.spec import EncodeSpec, InputSpec, Job, OutputSpec, RunOptions
from inflight.batch.runner import JobRunner
from inflight.batch.verify.checker import verify
from inflight.deploy.server.server import Server
from tests.fixtures.engines import TinyCheckpoint
from tests.fixtures.errors import raises
from tests.standins.openai_servers import Fault, openai_server
from tests.standins.openai_servers.answers import log_prob, token_ids

TEXT = "Leaves that were steamed, rolled and dried, and hot water. " * 12
WINDOW = 40


def job_of(folder: Path, servers: Sequence[str], rows: Sequence[dict[str, Any]], out: str = "scores.jsonl") -> Job:
    source = folder / "rows.jsonl"
    source.write_text("".join(json.dumps({"id": place, **row}) + "\n" for place, row in enumerate(rows)))
    return Job(
        input=InputSpec(address=str(source), id="id"),
        output=OutputSpec(address=str(folder / out)),
        encode=EncodeSpec(task="score", max_length=WINDOW),
        run_options=RunOptions(
            servers=tuple(servers), checkpoint_seconds=0.05, max_attempts=2, server_wait_timeout=5.0
        ),
    )


def run(folder: Path, servers: Sequence[str], rows: Sequence[dict[str, Any]], out: str = "scores.jsonl") -> Path:
    """A whole job over these rows; returns its output."""
    job = job_of(folder, servers, rows, out)
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


@pytest.mark.parametrize("kind", ["vllm", "inflight"])
def test_scores_of_servers_that_tell_prompt_logprobs(kind: str, tmp_path: Path) -> None:
    """In windows of the server's length, if that is shorter; and a text of CSV is one continuation, or a list."""
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven"]
    rows: list[dict[str, Any]] = [
        {"prompt": "the cup", "continuations": [" of tea", " is green"]},
        {"prompt": " ".join(words)},
        {"prompt": "the cup", "continuations": " of tea"},
        {"prompt": "a b c d e f g", "continuations": " too long"},
        {"prompt": "same", "continuations": ["word", ""]},
    ]
    with openai_server(kind) as server:
        server.max_model_len = 8
        output = run(tmp_path, [server.address], rows)
        assert max(len(each.body.get("prompt", ())) for each in server.requests if each.path != "/tokenize") == 7
    pair, text, single = lines_of(output)
    ids = [token_ids(each) for each in ("of tea", "is green")]
    assert pair["log_probs"] == pytest.approx([sum(map(log_prob, each)) for each in ids])
    assert pair["is_greedy"] == [not any(each % 2 for each in some) for some in ids]
    assert (pair["tokens"], pair["bytes"], pair["input_tokens"]) == ([2, 2], [7, 9], 8)
    assert text["log_probs"] == pytest.approx([sum(map(log_prob, token_ids(" ".join(words[1:]))))])
    assert single["log_probs"] == pair["log_probs"][:1]
    assert {each["id"]: each["code"] for each in lines_of(output.with_suffix(".errors.jsonl"))} == {
        3: "prompt_too_long"
    }
    assert [each["id"] for each in lines_of(output.with_suffix(".dead.jsonl"))] == ["4"]


@pytest.mark.parametrize(
    ("kind", "dialect", "named"),
    [("llama.cpp", "", "prompt_logprobs"), ("other", "&dialect=vllm", "log probabilities")],
)
def test_servers_that_cannot_score_end_the_job_before_its_first_row(
    kind: str, dialect: str, named: str, tmp_path: Path
) -> None:
    """By the dialect, or by what a server that ignores the field answers."""
    with openai_server(kind, faults=[Fault("schema")]) as server:
        job = job_of(tmp_path, [f"{server.address}?model=tea{dialect}"], [{"prompt": "a text"}])
        result = JobRunner(job, JobDirectory.from_output(job.output)).run()
    assert (result.code, result.counts.ok + result.counts.error) == ("unsupported_deployment", 0)
    assert named in result.message


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_scores_in_tables(suffix: str, tmp_path: Path) -> None:
    with openai_server("vllm") as server:
        output = run(
            tmp_path, [server.address], [{"prompt": "the cup", "continuations": [" of", " is"]}], f"s.{suffix}"
        )
    if suffix == "csv":
        (row,) = csv.DictReader(output.read_text().splitlines())
        assert json.loads(row["tokens"]) == [1, 1]
    else:
        (values,) = pq.read_table(output).to_pylist()
        assert values["is_greedy"] == [not token_ids(each)[0] % 2 for each in ("of", "is")]


class Letters:
    """A scorer whose tokens are letters, of which `ab` is one, after a token 0 if `begins`; `q` is no number."""

    def __init__(self, most: int | None = None, begins: bool = False) -> None:
        self.most, self.begins = most, begins
        self.scored: list[str] = []

    async def tokenize(self, text: str) -> Sequence[int]:
        return [*[0] * self.begins, *(ord(each) for each in text.replace("ab", "@"))]

    async def max_prompt_tokens(self) -> int | None:
        return self.most

    async def score_prompt(self, ids: Sequence[int]) -> Sequence[PromptToken]:
        self.scored.append("".join(map(chr, ids)))
        values = [math.nan if each == ord("q") else -float(each) for each in ids]
        return [PromptToken(value, each % 2 == 0) for value, each in zip([math.nan, *values[1:]], ids, strict=True)]


@pytest.mark.parametrize(
    ("scorer", "request_", "scored", "tokens"),
    [
        (Letters(), ScoreRequest("xa", ("bc",)), ["x@c"], [1]),  # as many tokens as the context has alone are left out
        (Letters(), ScoreRequest("x ", ("y",)), ["x y"], [2]),  # white space is the continuation's
        (Letters(begins=True), ScoreRequest("", ("xy", "z")), ["\0xy", "\0z"], [2, 1]),
        (Letters(4), ScoreRequest("uvwx", ("yz",), truncate=True), ["wxyz"], [2]),
        (Letters(4), ScoreRequest((1, 2), ((3, 4),)), ["\1\2\3\4"], [2]),
        (Letters(3), ScoreRequest("uvwxyz"), ["uvw", "wxy", "yz"], [5]),
        (Letters(9), ScoreRequest("uvwxy", max_length=3), ["uvw", "wxy"], [4]),
        (Letters(begins=True), ScoreRequest("x"), ["\0x"], [1]),
    ],
)
def test_tokens_that_are_scored(scorer: Letters, request_: ScoreRequest, scored: list[str], tokens: list[int]) -> None:
    answer = asyncio.run(score(request_, scorer))
    assert (scorer.scored, [each.tokens for each in answer.scores]) == (scored, tokens)
    ends = [text[-count:] for text, count in zip(scored, tokens, strict=False)] if request_.continuations else []
    assert [each.log_prob for each in answer.scores][: len(ends)] == [-float(sum(map(ord, end))) for end in ends]


@pytest.mark.parametrize(
    ("scorer", "request_", "code"),
    [
        (Letters(), ScoreRequest("a", ("b",)), "empty_prompt"),  # one token together, as the context has alone
        (Letters(), ScoreRequest("", ("x",)), "empty_prompt"),
        (Letters(), ScoreRequest("x"), "empty_prompt"),
        (Letters(3), ScoreRequest("uvwx", ("y",)), "prompt_too_long"),
        (Letters(3), ScoreRequest("u", ("vwx",), truncate=True), "prompt_too_long"),
        (Letters(), ScoreRequest("x", ("yq",)), "text_not_computed"),
    ],
)
def test_texts_that_cannot_be_scored(scorer: Letters, request_: ScoreRequest, code: str) -> None:
    with raises(InflightError, code):
        asyncio.run(score(request_, scorer))
