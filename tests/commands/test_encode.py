"""`inflight embed`, `rerank` and `classify` against a real Triton whose models are scripted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.client.support.encoder_server import EncoderServer
from tests.client.support.scripted_encoder import LABELS, expected_vector
from tests.fixtures.command_runner import CommandResult, CommandRunner

Run = Callable[..., CommandResult]


@pytest.fixture
def run(runner_of: Callable[[str], CommandRunner], scripted_encoders: EncoderServer) -> Run:
    address = ("--server", scripted_encoders.grpc_address)
    return lambda name, *arguments, stdin=b"": runner_of(name)(*arguments, *address, stdin=stdin)


def test_each_text_is_a_line_with_its_vector(run: Run) -> None:
    done = run("embed", "green tea", "お茶")
    assert done.code == 0
    for vector, text in zip(done.objects, ("green tea", "お茶"), strict=True):
        assert np.array_equal(np.float32(vector), expected_vector(text))
    assert done.err.startswith("[2 texts, 3 tokens, 16 dimensions in ")


@pytest.mark.parametrize("source", ["-", "--input=-", "--input=FILE"])
def test_texts_are_lines_of_standard_input_or_a_file(run: Run, tmp_path: Path, source: str) -> None:
    texts = [f"text {number}" for number in range(1500)]
    lines = "\r\n".join(texts).encode()
    (tmp_path / "texts.txt").write_bytes(lines)
    done = run("embed", "--json", source.replace("FILE", str(tmp_path / "texts.txt")), stdin=lines)
    assert [found["index"] for found in done.objects] == list(range(1500))
    last = done.objects[-1]
    assert np.array_equal(np.float32(last["embedding"]), expected_vector("text 1499"))
    assert (last["input_tokens"], last["truncated"]) == (2, False)


def test_a_terminal_shows_the_first_values_unless_json_is_wanted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inflight.commands.encode.embed.stdout_is_terminal", lambda: True)
    assert run("embed", "tea").out.count(",") < 16
    assert len(run("embed", "tea", "--json").objects[0]["embedding"]) == 16


def test_options_of_embeddings_are_sent(run: Run) -> None:
    done = run("embed", "tea", "--dimensions", "4", "--input-type", "query", "--truncate", "--priority", "2")
    assert np.array_equal(np.float32(done.objects[0]), expected_vector("tea", "query", 4))


def test_the_best_documents_come_first(run: Run) -> None:
    documents = ["a drink", "a town", "a\tleaf"]
    scores = [float(expected_vector("tea?" + document)[0]) for document in documents]
    order = sorted(range(3), key=lambda index: -scores[index])
    done = run("rerank", "tea?", *documents, "--json")
    assert [found["index"] for found in done.objects] == order
    assert done.objects[0] == {"index": order[0], "score": scores[order[0]], "document": documents[order[0]]}
    plain = run("rerank", "tea?", "-", "--top-n", "2", stdin="\n".join(documents).encode())
    assert [line.split("\t")[1] for line in plain.out.splitlines()] == [
        documents[index].replace("\t", " ") for index in order[:2]
    ]


def test_classes_have_their_labels_and_scores(run: Run) -> None:
    scores = dict(zip(LABELS, expected_vector("tea").tolist(), strict=False))
    best = max(scores, key=scores.__getitem__)
    assert run("classify", "tea").out == f"{best}\t{scores[best]:.4f}\ttea\n"
    assert run("classify", "tea", "--json").objects == [
        {"index": 0, "label": best, "score": scores[best], "scores": scores, "input_tokens": 1, "truncated": False}
    ]


@pytest.mark.parametrize("command", ["embed", "classify"])
def test_a_refused_text_ends_the_command_after_the_results_before_it(run: Run, command: str) -> None:
    done = run(command, "tea", "fail prompt_too_long", "coffee")
    assert (done.code, len(done.out.splitlines())) == (1, 1)
    assert "text 2: " in done.err
    assert done.err.endswith("[prompt_too_long]\n")


def test_bytes_that_are_no_text_are_named_by_their_line(run: Run) -> None:
    done = run("embed", "-", stdin=b"tea\n\xff\n")
    assert (done.code, len(done.objects)) == (1, 1)
    assert done.err.endswith("[invalid_text]\n")


@pytest.mark.parametrize(
    "arguments",
    [("embed",), ("embed", "tea", "--input", "-"), ("rerank", "tea?"), ("classify", "tea", "--input", "nothere")],
)
def test_wrong_usage_exits_with_2(run: Run, arguments: tuple[str, ...]) -> None:
    assert run(*arguments).code == 2


def test_a_missing_model_is_a_code_with_the_next_step(run: Run) -> None:
    done = run("embed", "tea", "--model", "nothere")
    assert done.code == 1
    assert "--embed" in done.err
    assert done.err.endswith("[model_not_found]\n")


def test_translations_are_lines(run: Run) -> None:
    done = run("translate", "green tea", "お茶", "--to", "de", "--from", "en")
    assert done.out == "GREEN TEA source_language=en target_prefix=de\nお茶 source_language=en target_prefix=de\n"
    assert run("translate", "-", stdin=b"tea\n\n  \ngreen\n").out == "TEA\n\n\nGREEN\n"
    assert run("translate", "tea", "--json").objects == [
        {"index": 0, "text": "TEA", "finish_reason": "stop", "output_tokens": 1, "input_tokens": 1, "truncated": False}
    ]
