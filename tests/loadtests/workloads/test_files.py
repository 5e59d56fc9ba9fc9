"""The files that a workload names: which are read, and what is said of those that can't be."""

from pathlib import Path

import pytest

from loadtests.errors import LoadError
from loadtests.workloads.files import load_files
from loadtests.workloads.spec import WorkloadSpec


def test_every_file_is_read_once_under_the_name_it_has(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"prompts")
    (tmp_path / "b,c.csv").write_bytes(b"numbers")
    (tmp_path / "tokenizer.json").write_bytes(b"tokenizer")
    prompts, numbers, tokenizer = str(tmp_path / "a.jsonl"), str(tmp_path / "b,c.csv"), str(tmp_path)
    spec = WorkloadSpec(
        prompts=prompts,
        tokenizer=tokenizer,
        input_tokens=f"trace:{numbers}#x",
        think_time=f"trace:{numbers},1..2",
        output_tokens="trace:sample:azure",
    )
    found = load_files(spec)
    assert found[prompts] == b"prompts"
    assert found[numbers] == b"numbers"
    assert found[tokenizer] == b"tokenizer"
    assert found["sample:azure"].startswith(b"TIMESTAMP,")
    assert len(found) == 4


def test_nothing_is_read_for_prompts_that_are_made() -> None:
    assert load_files(WorkloadSpec()) == {}


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (WorkloadSpec(prompts="/nowhere/a.jsonl"), "/nowhere/a.jsonl can't be read: No such file or directory"),
        (WorkloadSpec(trace="/"), "/ can't be read: Is a directory"),
        (WorkloadSpec(trace="a\0b"), "a\0b can't be read: embedded null byte"),
        (
            WorkloadSpec(trace="sample:nothing"),
            "there is no sample 'nothing'; there are azure, burstgpt, conversations",
        ),
        (WorkloadSpec(tokenizer="/nowhere"), "tokenizer '/nowhere': the directory has no tokenizer.json"),
        (WorkloadSpec(input_tokens="trace:/nowhere"), "/nowhere can't be read: No such file or directory"),
    ],
)
def test_what_can_not_be_read_is_said_by_name(spec: WorkloadSpec, says: str) -> None:
    with pytest.raises(LoadError) as caught:
        load_files(spec)
    assert str(caught.value).startswith(says)
    assert caught.value.code == "workload_invalid"
