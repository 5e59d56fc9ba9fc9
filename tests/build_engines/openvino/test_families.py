from __future__ import annotations

import json
from pathlib import Path

import pytest

from build_engines.build import BuildOptions, build_engine
from build_engines.errors import BuildError
from build_engines.openvino.families import COMPARED, REFUSED
from tests.fixtures.engines import ROOT
from tests.fixtures.errors import raises


def test_the_docs_have_what_the_table_has() -> None:
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    assert [kind for kind in (*COMPARED, *REFUSED) if f"`{kind}`" not in page] == []


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("phimoe", REFUSED["phimoe"]), ("deepseek_v3", "up to transformers"), ("qwen9", "does not know")],
)
def test_a_family_that_would_fail_or_answer_wrongly_is_refused_by_name(
    checkpoint: Path, tmp_path: Path, kind: str, reason: str
) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(config | {"model_type": kind}))
    with raises(BuildError, "unsupported_architecture", naming=(kind, reason)):
        build_engine(str(checkpoint), tmp_path / "engine", BuildOptions(precision="fp32"))
    assert not (tmp_path / "engine").exists()
