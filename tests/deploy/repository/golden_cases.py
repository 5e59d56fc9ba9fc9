"""Deployments whose repositories are compared with golden files, each on an engine directory made for it."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from build_engines.manifest import GpuFeatures, GpuLimits, Manifest
from inflight import __version__
from inflight.deploy.repository import model_configs
from inflight.deploy.repository.configure import build_id, committed_repository, configure_repository
from inflight.deploy.repository.model_names import ENCODER_MODELS
from inflight.deploy.repository.option_checks import check_options
from inflight.deploy.repository.options import DeploymentOptions
from tests.fixtures.config_diff import differences
from tests.fixtures.manifests import engine_set, manifest

GOLDEN = Path(__file__).parents[1] / "golden"
ENGINE_PLACEHOLDER = "/engines/demo"
"""What golden files have for the engine's directory."""
VERSION_PLACEHOLDER = '"this version"'
"""What they have for the version of inflight."""
BUILD_PLACEHOLDER = '"this build"'
"""What they have for the hash of the engine."""


@dataclass(frozen=True)
class GoldenCase:
    """A deployment; its golden file has what it changes of `base`, another case, or of the committed repository."""

    name: str
    target: str
    base: str = ""
    options: DeploymentOptions = field(default_factory=DeploymentOptions)
    manifest: dict[str, Any] = field(default_factory=dict)

    def write(self, work: Path) -> dict[str, str]:
        """Make the repository in the empty directory `work`; each model's config.pbtxt, by model."""
        engine, out = work / "engine", work / "repository"
        engine.mkdir()
        # All of trtllm-build's config.json that deploying reads.
        (engine / "config.json").write_text(json.dumps({"pretrained_config": {"logits_dtype": "float32"}}))
        engines = engine_set(engine, self.engine_manifest())
        check_options(self.options, engines)
        configure_repository(engines, out, self.options)
        masks = {
            str(engine): ENGINE_PLACEHOLDER,
            f'"{__version__}"': VERSION_PLACEHOLDER,
            f'"{build_id(self.engine_manifest())}"': BUILD_PLACEHOLDER,
        }
        return {path.parent.name: _masked(path.read_text(), masks) for path in sorted(out.glob("*/config.pbtxt"))}

    def engine_manifest(self) -> Manifest:
        limits = GpuLimits(max_batch_size=64, max_num_tokens=8192, max_input_len=1024, max_beam_width=4)
        gpu = {} if self.target == "openvino" else {"limits": limits, "features": GpuFeatures()}
        return manifest().model_copy(update={"target": self.target, **gpu, **self.manifest})

    @property
    def file(self) -> Path:
        """What it changes of its base, line by line."""
        return GOLDEN / f"{self.name}.txt"

    def directory(self) -> Path:
        """The configurations alone, written once."""
        return _written(self.name)

    def configs(self) -> dict[str, Any]:
        return parse({path.parent.name: path.read_text() for path in self.directory().glob("*/config.pbtxt")})

    def differences(self) -> str:
        """From the case that it is based on, or from the committed repository."""
        base = CASES[self.base].configs() if self.base else _of_generation(model_configs.load(committed_repository()))
        lines = []
        for model, config in sorted(self.configs().items()):
            changes = list(differences(base[model], config))
            assert bool(changes) == (base[model] != config), "a difference that has no line"
            if changes:
                lines += [model, *(f"  {change}" for change in changes)]
        return "".join(
            f"{line}\n" for line in [*(f"- {model}" for model in sorted(base.keys() - self.configs())), *lines]
        )


def parse(texts: Mapping[str, str]) -> dict[str, Any]:
    return {model: text_format.Parse(text, model_config_pb2.ModelConfig()) for model, text in texts.items()}


@cache
def _written(name: str) -> Path:
    place = Path(tempfile.mkdtemp(prefix="inflight-golden-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    with tempfile.TemporaryDirectory() as work:
        for model, text in CASES[name].write(Path(work)).items():
            (place / model).mkdir()
            (place / model / "config.pbtxt").write_text(text)
    return place


_KNOWN_CACHE = DeploymentOptions(kv_cache_tokens=16384)  # else it goes by this machine's memory
_MEDUSA = GpuFeatures(speculative_decoding_mode="medusa", max_draft_len=63)

CASES = {
    case.name: case
    for case in (
        GoldenCase("openvino", "openvino", options=_KNOWN_CACHE),
        GoldenCase("llmapi", "llmapi", "openvino"),
        GoldenCase("tensorrt-llm", "tensorrt-llm"),
        GoldenCase("tensorrt-llm-whole-answers", "tensorrt-llm", "tensorrt-llm", DeploymentOptions(decoupled=False)),
        GoldenCase(
            "tensorrt-llm-two-gpus",
            "tensorrt-llm",
            "tensorrt-llm",
            DeploymentOptions(settings={"gpu_device_ids": "0,1", "kv_cache_free_gpu_mem_fraction": "0.85"}),
            {"tensor_parallel": 2},
        ),
        GoldenCase(
            "tensorrt-llm-two-instances",
            "tensorrt-llm",
            "tensorrt-llm",
            DeploymentOptions(settings={"gpu_device_ids": "0;1", "preprocessing_instance_count": 2}),
        ),
        GoldenCase(
            "tensorrt-llm-medusa",
            "tensorrt-llm",
            "tensorrt-llm",
            DeploymentOptions(kv_cache_tokens=8192, max_queue_size=0, settings={"medusa_choices": [[0], [0, 0], [1]]}),
            {"features": _MEDUSA},
        ),
    )
}


def _of_generation(configs: model_configs.Configs) -> model_configs.Configs:
    return {name: config for name, config in configs.items() if name not in ENCODER_MODELS.values()}


def _masked(text: str, masks: Mapping[str, str]) -> str:
    for value, mask in masks.items():
        text = text.replace(value, mask)
    return text
