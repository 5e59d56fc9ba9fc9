"""examples/retrieval with real parts: PostgreSQL, all-MiniLM-L6-v2, and tiny models that rerank and answer."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from inflight.commands.batch import run
from inflight.deploy.repository.options import DeploymentOptions, EncoderOptions
from inflight.deploy.server.server import Server
from tests.fixtures.crashes import shared_server
from tests.fixtures.encoders import MinilmEngine, TinyEncoder
from tests.fixtures.engines import ROOT, TinyEngine
from tests.fixtures.ports import free_port
from tests.fixtures.postgresql import PostgreSql
from tests.fixtures.waiting import wait_until

EXAMPLE = ROOT / "examples" / "retrieval"
BIN = Path(sys.executable).parent


class Filled(NamedTuple):
    """Where the example ran."""

    server: str
    database: str
    out: Path
    environment: dict[str, str]


@pytest.fixture(scope="module")
def server(tiny_engine: TinyEngine, tiny_encoder: TinyEncoder, minilm_engine: MinilmEngine) -> Iterator[Server]:
    encoders = EncoderOptions(minilm_engine(), tiny_encoder("rerank"))
    with shared_server(tiny_engine("llama"), DeploymentOptions(encoders=encoders)) as running:
        yield running


@pytest.fixture(scope="module")
def filled(server: Server, postgresql: PostgreSql, tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """The documents are in the database, and the questions are answered."""
    out = tmp_path_factory.mktemp("example")
    database = postgresql.database().replace("inflight@", "inflight:${EXAMPLE_PASSWORD}@")
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    own = {"SERVER": server.grpc_address, "DATABASE": database, "OUT": str(out)}
    environment = {**os.environ, **own, "PATH": path, "EXAMPLE_PASSWORD": "not@asked:for/1%2F"}
    ran(["sh", str(EXAMPLE / "run.sh"), "--max-tokens", "4"], environment)
    return Filled(server.grpc_address, database, out, environment)


def ran(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_each_question_is_answered_from_the_right_document(filled: Filled) -> None:
    """The questions have few words of their documents."""
    answers = lines_of(filled.out / "answers.jsonl")
    assert len(answers) == len(lines_of(EXAMPLE / "questions.jsonl")) >= 30
    ranks = [[source["id"] for source in line["sources"]] for line in answers]
    assert all(len(ids) == 3 for ids in ranks)
    first = sum(ids[0] == line["document"] for ids, line in zip(ranks, answers, strict=True)) / len(answers)
    among = sum(line["document"] in ids for ids, line in zip(ranks, answers, strict=True)) / len(answers)
    print(f"the right document is the first for {first:.0%} of the questions, and among three for {among:.0%}")
    assert first >= 0.75
    assert among >= 0.9


def test_the_service_answers_with_its_sources(filled: Filled) -> None:
    port = free_port()
    command = [sys.executable, str(EXAMPLE / "service.py"), "--database", filled.database, "--port", str(port)]
    with subprocess.Popen(
        [*command, "--server", filled.server, "--rerank", "--max-tokens", "4"],
        env=filled.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as service:
        try:
            wait_until(lambda: service.poll() is not None or ask(port, "/", b"")[0] == 404)
            question = lines_of(EXAMPLE / "questions.jsonl")[0]["question"]
            status, answer = ask(port, "/answer", json.dumps({"question": question}).encode())
            assert status == 200, answer
            assert answer["question"] == question
            assert len(answer["sources"]) == 3
            assert all(source["id"] and source["text"] and "score" in source for source in answer["sources"])
            assert ask(port, "/answer", b"no JSON")[0] == 400
            assert ask(port, "/answer", json.dumps({"question": "tea " * 2000}).encode())[0] == 400
        finally:
            service.terminate()


def ask(port: int, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
    """The status and the answer of the service; 0 while nobody listens."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
    except OSError:
        return 0, {}


def test_the_readme_names_options_and_files_that_are_there() -> None:
    text = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    for name in re.findall(r"`([a-z]+\.(?:sh|py|txt|jsonl))`", text):
        assert (EXAMPLE / name).is_file()
    texts = {
        node.value
        for node in ast.walk(ast.parse((EXAMPLE / "service.py").read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    known = {"run.sh": {option for one in run.command.params for option in one.opts}, "service.py": texts}
    for line in [*text.splitlines(), *(EXAMPLE / "run.sh").read_text().splitlines()]:
        script = "service.py" if " service.py " in line else "run.sh"
        if "inflight build" not in line and "inflight serve" not in line and "docker" not in line:
            assert set(re.findall(r" (--[a-z-]+)", line)) <= known[script], line
