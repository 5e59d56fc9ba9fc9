from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from build_engines.manifest import EncoderTask
from inflight.runtime.encoders.manifest import EncoderDescription
from inflight.runtime.encoders.tokenize import PlainText
from inflight.runtime.triton.encoders.tasks import TASKS
from tests.fixtures.manifests import encoder_manifest
from tests.runtime.triton.request_inputs import inputs_of


@pytest.mark.parametrize(
    ("task", "given", "expected"),
    [
        ("embed", {"text_input": [[b"tea"]]}, PlainText("ask: tea", False)),
        ("classify", {"text_input": [[b"tea"]]}, PlainText("ask: tea", False)),
        ("rerank", {"query": [b"tea"], "documents": [b"leaves"]}, PlainText("ask: tea", False, "leaves")),
    ],
)
def test_the_default_prompt_goes_before_the_text_or_the_query(
    tmp_path: Path, task: EncoderTask, given: dict[str, Any], expected: PlainText
) -> None:
    encoder_manifest(task, prompts={"query": "ask: "}, default_prompt="query").write(tmp_path)
    read = TASKS[task](EncoderDescription.from_directory(str(tmp_path))).read(inputs_of(**given))
    assert read.texts == [expected]
