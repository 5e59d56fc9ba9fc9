from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from loadtests.errors import LoadError
from loadtests.workloads.factory import make_workload
from loadtests.workloads.interface import TextsRequest, Workload
from loadtests.workloads.spec import WorkloadSpec
from tests.fixtures.errors import raises


def requests_of(workload: Workload, count: int) -> list[TextsRequest]:
    found = []
    for number in range(count):
        session = workload.session(number)
        if session is None:
            break
        request = next(session.requests())
        assert isinstance(request, TextsRequest)
        found.append(request)
    return found


def test_texts_have_the_default_lengths_of_a_corpus_unless_others_are_chosen() -> None:
    texts = [one.texts[0] for one in requests_of(make_workload(WorkloadSpec(task="embed"), {}, 1), 2000)]
    words = [len(text.split()) for text in texts]
    assert np.percentile(words, 50) == pytest.approx(40, rel=0.15)
    assert np.percentile(words, 90) == pytest.approx(200, rel=0.15)
    assert max(words) <= 512
    assert len(set(texts)) > 1990
    spec = WorkloadSpec(task="classify", text_tokens="7", texts_per_request="3")
    assert [len(text.split()) for text in requests_of(make_workload(spec, {}, 1), 1)[0].texts] == [7, 7, 7]


def test_a_request_to_rerank_has_a_query_and_documents() -> None:
    spec = WorkloadSpec(task="rerank", texts_per_request="uniform:2,5", query_tokens="4")
    requests = requests_of(make_workload(spec, {}, 1), 20)
    assert {len(one.texts) for one in requests} == {2, 3, 4, 5}
    assert {len(one.query.split()) for one in requests} == {4}
    assert requests == requests_of(make_workload(spec, {}, 1), 20), "the seed determines all texts"


def test_texts_of_a_file_are_sent_in_order_and_again() -> None:
    data = b"".join(json.dumps({"text": f"text {i}"}).encode() + b"\n" for i in range(4))
    spec = WorkloadSpec(task="embed", prompts="f", texts_per_request="3")
    sent = [text for one in requests_of(make_workload(spec, {"f": data}, 1), 4) for text in one.texts]
    assert sent == [f"text {i % 4}" for i in range(12)]
    once = make_workload(spec.model_copy(update={"repeat": False}), {"f": data}, 1)
    assert [one.texts for one in requests_of(once, 9)] == [("text 0", "text 1", "text 2"), ("text 3",)]


def test_a_line_with_documents_is_a_request_to_rerank() -> None:
    data = json.dumps({"query": "tea?", "documents": ["Tea.", "Tides."]}).encode()
    (request,) = requests_of(make_workload(WorkloadSpec(task="rerank", prompts="f"), {"f": data}, 1), 1)
    assert (request.query, request.texts) == ("tea?", ("Tea.", "Tides."))


@pytest.mark.parametrize(
    ("spec", "line", "named"),
    [
        (WorkloadSpec(task="embed", output_tokens="9"), b"", "output_tokens"),
        (WorkloadSpec(task="embed", query_tokens="9"), b"", "query_tokens"),
        (WorkloadSpec(task="rerank", prompts="f", texts_per_request="2"), b"{}", "texts_per_request"),
        (WorkloadSpec(task="embed", prompts="f"), b'{"text": 1}', "line 1"),
        (WorkloadSpec(task="rerank", prompts="f"), b'{"query": "a", "documents": []}', "line 1"),
        (WorkloadSpec(texts_per_request="9"), b"", "texts_per_request"),
    ],
)
def test_what_has_no_effect_or_is_no_text_is_refused(spec: WorkloadSpec, line: bytes, named: str) -> None:
    with raises(LoadError, "workload_invalid", naming=named):
        make_workload(spec, {"f": line}, 1)


@pytest.mark.parametrize(("task", "good"), [("embed", {"text": "a"}), ("rerank", {"query": "a", "documents": ["a"]})])
def test_lines_without_texts_are_left_out(task: Literal["embed", "rerank"], good: dict[str, object]) -> None:
    data = b"".join(json.dumps(row).encode() + b"\n" for row in (good, {"text": 1}, good))
    workload = make_workload(WorkloadSpec(task=task, prompts="f", repeat=False, texts_per_request="1"), {"f": data}, 0)
    assert [workload.session(number) is not None for number in range(3)] == [True, True, False]


def test_a_line_with_audio_is_a_request_to_transcribe(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"sound")
    lines = [{"audio": "a.wav", "language": "en"}, {"audio": "missing.wav"}, {"audio": str(tmp_path / "a.wav")}]
    name = str(tmp_path / "clips.jsonl")
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    workload = make_workload(WorkloadSpec(task="transcribe", prompts=name), {name: data}, 1)
    requests = requests_of(workload, 3)
    assert [(request.texts, request.query) for request in requests] == [
        ((str(tmp_path / "a.wav"),), language) for language in ("en", "", "en")
    ]
    with raises(LoadError, "workload_invalid", naming="--prompts"):
        make_workload(WorkloadSpec(task="transcribe"), {}, 1)
