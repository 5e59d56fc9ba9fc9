"""What the documents name exists in the repository."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import pytest
from inflight_client.backends_docs import tables
from inflight_client.errors_docs import render

from inflight.deploy.repository.configure import committed_repository
from inflight.deploy.repository.model_configs import load
from inflight.gateway.audit.line import field_table
from inflight.openai_api import fields_docs
from inflight.option_hints import table

ROOT = Path(__file__).resolve().parents[1]


CONTRACT = json.loads((ROOT / "tests/data/tensorrt_llm_triton.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("model", CONTRACT["models"])
def test_the_request_contract_tells_of_each_input(model: str) -> None:
    """Upstream's, what its 1.x added, and ours."""
    parts = (CONTRACT["models"][model], CONTRACT["additions_1x"].get(model, {}))
    upstreams = {tensor["name"] for part in parts for tensor in part.get("input", [])}
    ours = {tensor.name for tensor in load(committed_repository())[model].input}
    text = (ROOT / "docs/request-contract.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    told = {name for row in rows for name in re.findall(r"`([A-Za-z_]+)`", row)}
    assert (upstreams | ours) - told == set()


def test_the_page_of_the_gateways_fields_is_that_of_the_tables() -> None:
    """`python -m inflight.openai_api.fields_docs > docs/gateway-fields.md` writes it anew."""
    assert (ROOT / "docs/gateway-fields.md").read_text(encoding="utf-8") == fields_docs.render()


def test_the_page_of_error_codes_is_that_of_the_table() -> None:
    """`python -m inflight_client.errors_docs > docs/errors.md` writes it anew."""
    assert (ROOT / "docs/errors.md").read_text(encoding="utf-8") == render()


def test_the_page_of_the_audit_log_has_the_table_of_its_fields() -> None:
    """`python -m inflight.gateway.audit.line` writes it."""
    assert f"\n{field_table()}\n" in (ROOT / "docs/audit.md").read_text(encoding="utf-8")


def test_the_page_of_other_servers_has_the_tables_of_dialects() -> None:
    """`python -m inflight_client.backends_docs` writes them."""
    assert f"\n{tables()}\n" in (ROOT / "docs/backends.md").read_text(encoding="utf-8")


def test_the_page_for_users_of_others_has_the_hints_of_options() -> None:
    """`python -c 'from inflight.option_hints import table; print(table())'` writes its table anew."""
    assert f"\n{table()}\n" in (ROOT / "docs/coming-from.md").read_text(encoding="utf-8")


def test_the_reference_has_a_heading_for_each_command() -> None:
    text = "\n".join(runpy.run_path(str(ROOT / "docs/hooks.py"))["command_help"]())
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert len(set(headings)) == len(headings) > 35
    assert {"inflight serve", "inflight batch run", "inflight load compare", "inflight key limit"} <= set(headings)
    assert "Sentinel" not in text
    for heading in headings:
        assert f"Usage: {heading} " in text
