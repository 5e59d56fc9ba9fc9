"""What the documents say stands in the tree."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_the_request_contract_tells_of_each_input() -> None:
    contract = json.loads((ROOT / "tests/data/tensorrt_llm_triton.json").read_text(encoding="utf-8"))
    inputs = {tensor["name"] for tensor in contract["models"]["tensorrt_llm"]["input"]}
    text = (ROOT / "docs/request-contract.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    told = {name for row in rows for name in re.findall(r"`([a-z_]+\*?)`", row)}
    missing = {
        name for name in inputs if name not in told and not (name.startswith("retention_") and "retention_*" in told)
    }
    assert missing == set()
