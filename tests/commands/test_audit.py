"""`inflight audit`: its exit codes and what it prints of a log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inflight.gateway.audit.chain import AuditOptions, Chain


@pytest.fixture
def path(tmp_path: Path) -> Path:
    options = AuditOptions(tmp_path / "audit.jsonl", 10**6)
    lines = [{"event": "request", "key": name, "failed": ["a: overloaded"], "output_tokens": 2} for name in "abb"]
    Chain(options).append([json.dumps({"time": f"2026-0{9 - at}", **line}).encode() for at, line in enumerate(lines)])
    return options.path


def test_verify_names_the_first_wrong_line(runner_of: Any, path: Path) -> None:
    run = runner_of("audit")
    (whole,) = run("verify", str(path), "--json").objects
    assert (whole["valid"], whole["lines"]) == (True, 3)
    assert run("verify", str(path), "--contains", whole["sha256"]).code == 0
    assert run("verify", str(path), "--contains", "0" * 64).code == 1
    for unusable in ("", whole["sha256"][:-1], whole["sha256"].upper()):
        assert run("verify", str(path), "--contains", unusable).code == 2
    path.write_bytes(path.read_bytes().replace(b'"key":"b"', b'"key":"c"').replace(b'"key": "b"', b'"key": "c"'))
    done = run("verify", str(path))
    assert (done.code, done.out.startswith(f"{path}:2: ")) == (1, True)
    assert run("verify", str(path), "--json").objects[0]["row"] == 2


def test_summarize_counts_values_and_tokens(runner_of: Any, path: Path) -> None:
    run = runner_of("audit")
    (summary,) = run("summarize", str(path), "--json").objects
    assert summary["key"]["b"] == {"lines": 2, "input_tokens": 0, "output_tokens": 4}
    assert (summary["failed"]["a: overloaded"]["lines"], summary["tenant"]) == (3, {})
    assert (summary["from"], summary["to"]) == ("2026-07", "2026-09")
    assert "b: 2 lines" in run("summarize", str(path)).out
    with path.open("ab") as file:
        file.write(b'[]\n3\n{"time":3,"input_tokens":"x","model":{},"key":"\\u001b[2J\\nb"}\n\xff')
    done = run("summarize", str(path))
    assert (done.code, "\x1b" in done.out, "\nb" in done.out) == (0, False, False)
    missing = run("summarize", str(path.with_name("missing")))
    assert (missing.code, "[input_not_found]" in missing.err) == (1, True)
