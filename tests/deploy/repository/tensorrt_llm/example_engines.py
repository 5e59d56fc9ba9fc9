"""Manifests of TensorRT-LLM's engines with all that parameters may depend on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from build_engines.manifest import GpuFeatures, GpuLimits, Manifest
from inflight.deploy.repository.options import DeploymentOptions
from inflight.deploy.repository.tensorrt_llm.backend import read_parameters
from tests.fixtures.manifests import manifest

LOOKAHEAD = {"speculative_decoding_mode": "lookahead_decoding", "max_draft_len": 15}

EXTERNAL = {"speculative_decoding_mode": "draft_tokens_external"}

MEDUSA = {"speculative_decoding_mode": "medusa", "max_draft_len": 2}

NO_FMHA = {"features": {"paged_context_fmha": False}}

ENCODER = {"architecture": "T5ForConditionalGeneration"}


def gpu_manifest(features: dict[str, Any] | None = None, **changes: Any) -> Manifest:
    limits = GpuLimits(max_batch_size=64, max_num_tokens=8192, max_input_len=1024, max_beam_width=4)
    made_for = {"target": "tensorrt-llm", "limits": limits, "features": GpuFeatures(**(features or {}))}
    return manifest().model_copy(update={**made_for, **changes})


def texts(settings: dict[str, Any], engine: Path = Path("/engines/demo"), **manifest: Any) -> dict[str, str]:
    return read_parameters(
        DeploymentOptions(settings=settings), engine, gpu_manifest(**manifest)
    ).engine_model_parameters()
