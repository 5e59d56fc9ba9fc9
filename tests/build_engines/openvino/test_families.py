from __future__ import annotations

import json
from pathlib import Path

import pytest

from build_engines.build import BuildOptions, build_engine
from build_engines.errors import BuildError
from build_engines.openvino.families import COMPARED, REFUSED, check_family
from tests.fixtures.engines import ROOT
from tests.fixtures.errors import raises
from tests.fixtures.exports import in_a_fork


def test_the_docs_have_what_the_table_has() -> None:
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    assert [kind for kind in (*COMPARED, *REFUSED) if f"`{kind}`" not in page] == []


def test_a_family_that_would_answer_wrongly_is_refused_by_name(checkpoint: Path, tmp_path: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(config | {"model_type": "phimoe"}))
    with raises(BuildError, "unsupported_architecture", naming=("phimoe", REFUSED["phimoe"])):
        build_engine(str(checkpoint), tmp_path / "engine", BuildOptions(precision="fp32"))
    assert not (tmp_path / "engine").exists()


@pytest.mark.parametrize(("kind", "reason"), [("deepseek_v3", "up to transformers"), ("qwen9", "does not know")])
def test_a_family_that_is_not_exported_is_refused_by_name(kind: str, reason: str) -> None:
    code, sentence = in_a_fork(refusal, kind)
    assert code == "unsupported_architecture"
    assert kind in sentence
    assert reason in sentence


def refusal(kind: str) -> tuple[str, str]:
    with pytest.raises(BuildError) as refused:
        check_family(Path("checkpoint"), kind)
    return refused.value.code, str(refused.value)
