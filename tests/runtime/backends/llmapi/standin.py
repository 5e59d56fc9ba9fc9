"""Engine directories for the stand-in of tensorrt_llm, and the stand-in itself within reach."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from inflight.runtime.engine.interface import EngineOptions
from inflight.runtime.engine.supervisor import EngineProcess
from inflight.runtime.messages import GenerationRequest
from tests.runtime.engine.fake_engine_process import EventWaiter

STANDIN = Path(__file__).resolve().parents[3] / "standins" / "llmapi"
VERSION = "STANDIN_TENSORRT_LLM_VERSION"
END_IDS = (2, 3)
VOCABULARY = 512
LONGEST = 100_000
REFUSED, FAILING, DEADLY, GARBLED = 10, 11, 12, 13
STANDIN_OPTIONS = {"refuse_token": REFUSED, "fail_token": FAILING, "die_token": DEADLY, "garble_token": GARBLED}
PROMPT = (100, 101, 102)
ENDLESS = 90_000
Engines = Callable[..., EngineProcess]


def engine_dir(directory: Path, standin_options: dict[str, Any] | None = None, **arguments: Any) -> Path:
    """As `inflight build --target llmapi` lays it out, without weights; `wishes` are the stand-in's."""
    (directory / "checkpoint").mkdir(parents=True)
    manifest = {"vocab_size": VOCABULARY, "max_seq_len": LONGEST, "end_ids": [*END_IDS, VOCABULARY]}
    (directory / "engine.json").write_text(json.dumps(manifest))
    settings = {"max_batch_size": 4, "guided_decoding_backend": "xgrammar", "enable_chunked_prefill": True}
    (directory / "model.yaml").write_text(yaml.safe_dump(settings | arguments))
    (directory / "checkpoint" / "standin.json").write_text(json.dumps(standin_options or {}))
    return directory


def options_of(directory: Path, **more: Any) -> EngineOptions:
    return EngineOptions("llmapi", str(directory), **{"kv_cache_tokens": 0, "max_num_tokens": 8192, **more})


@contextmanager
def imported(version: str = "1.2.1") -> Iterator[Any]:
    """The stand-in as `tensorrt_llm` of this process, behaving as a version; nothing of it stays."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VERSION, version)
        patch.syspath_prepend(str(STANDIN))
        outer = _forget()
        try:
            yield importlib.import_module("tensorrt_llm")
        finally:
            _forget()
            sys.modules.update(outer)


def _forget() -> dict[str, Any]:
    """Remove the stand-in's modules from those of this process, and return them."""
    names = [name for name in sys.modules if name.partition(".")[0] == "tensorrt_llm"]
    return {name: sys.modules.pop(name) for name in names}


def answered(engine: EngineProcess, request: GenerationRequest) -> EventWaiter:
    """Submit a request, and return all that came of it."""
    answer = EventWaiter()
    engine.submit(request, answer)
    answer.end()
    return answer
