"""LFM2: layers that are convolutions, whose states are kept by blocks of the KV cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from build_engines.kv_cache import token_bytes
from build_engines.manifest import Manifest
from inflight.runtime.backends.openvino.model_runner import OpenVinoModelRunner
from inflight.runtime.engine.interface import EngineOptions
from inflight.runtime.messages import GenerationRequest, SamplingConfig
from tests.fixtures.engines import TinyEngine
from tests.runtime.backends.drive_runner import run

BASE = tuple(5 + 7 * place % 1000 for place in range(130))


@pytest.fixture(scope="module")
def engine(tiny_engine: TinyEngine) -> Path:
    return tiny_engine("lfm2")


def answers(engine: Path, *requests: GenerationRequest, **options: int | bool) -> list[object]:
    """Return the tokens, or beams, of requests that run one after the other."""
    runner = OpenVinoModelRunner(EngineOptions("openvino", str(engine), 4096, **options))  # type: ignore[arg-type]
    collected = [run(runner, request)[0] for request in requests]
    return [each.beams or each.token_ids for each in collected]


def test_reused_blocks_and_chunks_and_forks_give_what_whole_prompts_give(engine: Path) -> None:
    requests = [
        GenerationRequest(BASE[:70], 40),
        GenerationRequest((*BASE[:70], 900), 40),  # two blocks are known
        GenerationRequest(BASE[:64], 40),
        GenerationRequest(BASE, 12, sampling=SamplingConfig(beam_width=3)),
        GenerationRequest((*BASE[:50], 901), 12, sampling=SamplingConfig(beam_width=3)),
    ]
    reused = answers(engine, *requests, kv_cache_reuse=True, max_num_tokens=24)
    assert reused == answers(engine, *requests, kv_cache_reuse=False, max_num_tokens=512)


@pytest.mark.parametrize("precision", ["f32", "u8"])
def test_the_cache_takes_what_the_manifest_promises(engine: Path, precision: str) -> None:
    options = EngineOptions("openvino", str(engine), 4096, extra={"KV_CACHE_PRECISION": precision})
    caches = OpenVinoModelRunner(options)._models[0].caches
    manifest = Manifest.read(engine)
    assert (manifest.layers, manifest.conv_layers, manifest.conv_state) == (4, 2, 64 * 3)
    planned = 4096 * token_bytes(manifest, precision)
    assert sum(cache.byte_size for cache in caches) == pytest.approx(planned, rel=0.05)


def test_speculation_is_refused(engine: Path) -> None:
    with pytest.raises(ValueError, match="leave speculation out"):
        OpenVinoModelRunner(EngineOptions("openvino", str(engine), 4096, prompt_lookup=True))
