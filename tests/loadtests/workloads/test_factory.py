"""Workloads as wholes: the same in every process and order, refused where a field would have no effect, large files."""

import json
import subprocess
import sys
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from pydantic import ValidationError

from loadtests.workloads.factory import make_workload
from loadtests.workloads.files import load_files
from loadtests.workloads.spec import WorkloadSpec
from tests.loadtests.workloads.workload_requests import asked

SPECS: list[dict[str, Any]] = [
    {
        "input_tokens": "lognormal:20,0.5",
        "prefix_tokens": 10,
        "prefix_count": 3,
        "turns": "uniform:1,3",
        "think_time": "1",
    },
    {"prompts": "sample:prompts", "order": "shuffled", "cancel_fraction": 0.5, "cancel_after": "exponential:1"},
    {"prompts": "sample:conversations", "think_time": "normal:2,1"},
    {"trace": "sample:mooncake", "input_scale": 0.05, "repeat": True},
]
_ROOT = Path(__file__).parents[3]
_PROGRAM = """
import json, sys
from loadtests.workloads.files import load_files
from loadtests.workloads.factory import make_workload
from loadtests.workloads.spec import WorkloadSpec
from tests.loadtests.workloads.test_factory import everything
print(json.dumps([everything(fields, reversed(range(60))) for fields in json.loads(sys.argv[1])]))
"""


def everything(fields: dict[str, Any], numbers: Any) -> dict[str, Any]:
    """All that is asked in each of the sessions, by their numbers."""
    spec = WorkloadSpec(**fields)
    workload = make_workload(spec, load_files(spec), 11)
    found = {}
    for number in numbers:
        session = workload.session(number)
        assert session is not None
        asks = [(ask.prompt, ask.max_tokens, ask.think_time, ask.cancel_after) for ask in asked(session)]
        found[str(number)] = json.loads(json.dumps([session.number, session.due, asks]))
    return found


def test_a_sessions_number_decides_it_in_any_process_and_order() -> None:
    command = [sys.executable, "-c", _PROGRAM, json.dumps(SPECS)]
    there = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, cwd=_ROOT)
    assert json.loads(there.stdout) == [everything(fields, range(60)) for fields in SPECS]


@pytest.mark.parametrize("fields", SPECS)
def test_another_seed_is_another_workload(fields: dict[str, Any]) -> None:
    spec = WorkloadSpec(**fields)
    one, other = (
        [asked(make_workload(spec, load_files(spec), seed).session(number)) for number in range(10)] for seed in (1, 2)
    )
    assert one != other


WITHOUT_EFFECT: list[dict[str, Any]] = [
    {"prompts": "p", "trace": "t"},
    *(
        {"prompts": "p", **fields}
        for fields in ({"input_tokens": "5"}, {"prefix_tokens": 5}, {"trace_format": "azure"})
    ),
    *({"trace": "t", **fields} for fields in ({"output_tokens": "5"}, {"turns": "2"}, {"order": "shuffled"})),
    {"input_scale": 0.5},
    {"repeat": False},
    {"prefix_tokens": 50, "max_input_tokens": 50},
    {"tokenizer": "t", "tokens_per_word": 2},
]
"""Refused; `tests.loadtests.test_error_messages` has what is said of each."""


@pytest.mark.parametrize(
    "fields",
    [
        {"input_token": "5"},
        {"cancel_fraction": 1.5},
        {"prefix_count": 0},
        {"prompt_format": "chat"},
        {"input_scale": float("nan")},
    ],
)
def test_the_spec_refuses_what_it_does_not_know(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        WorkloadSpec(**fields)


def test_a_tokenizer_counts_the_tokens_of_a_trace() -> None:
    from tests.loadtests.workloads.test_exact_text import count
    from tests.loadtests.workloads.tokenizers import tokenizer

    kind = "bytes and a first token"
    spec = WorkloadSpec(trace="sample:mooncake", tokenizer="t", input_scale=0.1)
    files = load_files(WorkloadSpec(trace=spec.trace)) | {"t": tokenizer(kind).to_str().encode()}
    workload = make_workload(spec, files, 0)
    rows = [json.loads(line) for line in files["sample:mooncake"].splitlines()]
    for number in range(10):
        (ask,) = asked(workload.session(number))
        assert count(kind, str(ask.prompt)) == round(rows[number]["input_length"] * 0.1)


@pytest.mark.slow
@pytest.mark.parametrize("source", ["prompts", "trace"])
def test_a_million_rows_load_in_seconds(source: str) -> None:
    if source == "prompts":
        row = json.dumps({"prompt": "Tell me about tea and the history of tea, please.", "max_tokens": 20})
        spec, head = WorkloadSpec(prompts="f"), ""
    else:
        row = "2023-11-16 18:17:03.9799600,480,20"
        spec, head = WorkloadSpec(trace="f"), "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    data = head + (row + "\n") * 1_000_000
    began = monotonic()
    workload = make_workload(spec, {"f": data.encode()}, 0)
    assert monotonic() - began < 60
    assert asked(workload.session(999_999))[0].max_tokens == 20
