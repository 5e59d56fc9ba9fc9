"""What transformers 5 writes, as `save_pretrained` of 5.12 does, read with transformers 4."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from build_engines.checkpoints.checkpoint import read_config
from build_engines.checkpoints.transformers5 import read_transformers_config
from build_engines.errors import BuildError
from tests.fixtures.errors import raises

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
LAYERS = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}


def write(directory: Path, model_type: str, parameters: Any) -> Path:
    content = {"model_type": model_type, "architectures": ["X"], "rope_parameters": parameters}
    (directory / "config.json").write_text(json.dumps(content))
    return directory


@pytest.mark.parametrize(
    ("model_type", "parameters", "fields"),
    [
        ("qwen2", {"rope_theta": 1e6, "rope_type": "default"}, {"rope_theta": 1e6, "rope_scaling": None}),
        ("llama", YARN | {"rope_theta": 5e5}, {"rope_theta": 5e5, "rope_scaling": YARN}),
        (
            "gpt_neox",
            {"rope_theta": 2e4, "partial_rotary_factor": 0.5, "rope_type": "default"},
            {"rotary_emb_base": 2e4, "rotary_pct": 0.5},
        ),
        (
            "gemma3_text",
            LAYERS,
            {
                "rope_theta": 1e6,
                "rope_local_base_freq": 1e4,
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            },
        ),
    ],
)
def test_rotary_parameters_are_kept(
    tmp_path: Path, model_type: str, parameters: dict[str, Any], fields: dict[str, Any]
) -> None:
    write(tmp_path, model_type, parameters)
    config, content = read_transformers_config(tmp_path), read_config(tmp_path)
    for name, value in fields.items():
        assert getattr(config, name) == value
        assert content.get(name) == value


def test_rotary_parameters_by_layer_of_another_model_are_refused(tmp_path: Path) -> None:
    with raises(BuildError, "unsupported_architecture", naming="rope_parameters"):
        read_config(write(tmp_path, "llama", LAYERS))
