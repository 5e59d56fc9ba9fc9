"""The memory of an engine that is served beside others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from build_engines.errors import BuildError
from build_engines.manifest import Manifest
from build_engines.plan import openvino_memory
from build_engines.plan.formats import OPENVINO_KV, OPENVINO_WEIGHTS
from build_engines.plan.model import read_model
from inflight.deploy.repository import kv_budget
from inflight.deploy.repository.options import DeploymentOptions


@dataclass(frozen=True)
class EngineMemory:
    """`fixed` bytes without the KV cache, and a cache of `kv_cache_tokens` at `token_bytes` each."""

    fixed: int
    kv_cache_tokens: int
    token_bytes: int

    @property
    def total(self) -> int:
        return self.fixed + self.kv_cache_tokens * self.token_bytes


def engine_memory(directory: Path, manifest: Manifest, options: DeploymentOptions, share: int) -> EngineMemory:
    """Return the memory that an engine for processors takes. By default, its KV cache takes a quarter of `share` bytes,
    or less if all its sequences at full length need less."""
    sequences = options.max_num_sequences or openvino_memory.MAX_NUM_SEQUENCES
    tokens = options.kv_cache_tokens or kv_budget.default_kv_cache_tokens(manifest, sequences, share)
    return EngineMemory(_fixed(directory, manifest, options, sequences), tokens, kv_budget.bytes_per_token(manifest))


def _fixed(directory: Path, manifest: Manifest, options: DeploymentOptions, sequences: int) -> int:
    try:
        model = read_model(directory)
        footprint = openvino_memory.footprint(
            model.shape,
            model.parameters,
            model.ready or OPENVINO_WEIGHTS[manifest.precision],
            OPENVINO_KV[manifest.kv_cache_precision],
            max_num_sequences=sequences,
            max_num_tokens=options.max_num_tokens or openvino_memory.MAX_NUM_TOKENS,
        )
        return footprint.fixed
    except (BuildError, KeyError):  # an architecture that the plan does not know
        return openvino_memory.OVERHEAD + sum(file.bytes for file in manifest.files.values())
