from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from build_engines.errors import BuildError
from build_engines.tensorrt_llm.engine_config import check_engine
from build_engines.tensorrt_llm.recipe import Recipe, read_recipe
from tests.fixtures.errors import raises

LIMITS = {"max_batch_size": 8, "max_input_len": 63, "max_seq_len": 64, "max_num_tokens": 256, "max_beam_width": 1}
CONFIG: dict[str, Any] = {
    "version": "1.2.1",
    "pretrained_config": {
        "mapping": {"tp_size": 1, "pp_size": 1},
        "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
    },
    "build_config": LIMITS | {"plugin_config": {"use_paged_context_fmha": True, "lora_plugin": None}},
}
LOG = Path("/logs/build.log")


def recipe(**fields: Any) -> Recipe:
    limits = {f"limits.{name}": value for name, value in LIMITS.items()}
    return read_recipe(None, limits | {"quantization": "fp8", "kv_cache_dtype": "fp8"} | fields)


def write(out: Path, config: dict[str, Any] | str, ranks: int = 1) -> None:
    (out / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    for rank in range(ranks):
        (out / f"rank{rank}.engine").write_bytes(b"engine")


def changed(path: str, value: Any) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps(CONFIG))
    *parts, last = path.split(".")
    inner = copy
    for part in parts:
        inner = inner[part]
    inner[last] = value
    return copy


def test_an_engine_as_it_was_asked_for(tmp_path: Path) -> None:
    write(tmp_path, CONFIG)
    config = check_engine(tmp_path, recipe(), "1.2.1", LOG)
    assert (config.version, config.limits) == ("1.2.1", LIMITS)
    assert (config.quantization, config.tensor_parallel) == ("FP8", 1)


def test_room_for_drafts_and_a_step_that_a_full_batch_can_not_fill(tmp_path: Path) -> None:
    """What tensorrt_llm/builder.py changes by itself."""
    write(tmp_path, changed("build_config.max_seq_len", 74))
    check_engine(tmp_path, recipe(), "1.2.1", LOG)
    write(tmp_path, changed("build_config.max_num_tokens", 512))
    check_engine(tmp_path, recipe(**{"limits.max_num_tokens": 8192}), "1.2.1", LOG)


def test_what_requests_can_bring_and_ask_for(tmp_path: Path) -> None:
    """The mode of speculation is a number there; ours are words."""
    asked = {
        "lora.target_modules": ["attn_qkv"],
        "speculation.mode": "lookahead_decoding",
        "speculation.max_draft_len": 7,
    }
    config = changed("build_config.speculative_decoding_mode", 8)
    config["build_config"]["max_draft_len"] = 7
    write(tmp_path, config)
    with raises(BuildError, "build_failed", naming="adapters"):
        check_engine(tmp_path, recipe(**asked), "1.2.1", LOG)
    config["build_config"]["plugin_config"]["lora_plugin"] = "float16"
    write(tmp_path, config)
    assert check_engine(tmp_path, recipe(**asked), "1.2.1", LOG).lora
    for other, message in (
        (
            {"speculation.mode": "draft_tokens_external"},
            ("speculative_decoding_mode is 8", "draft_tokens_external"),
        ),
        ({"speculation.max_draft_len": 8}, "max_draft_len is 7"),
    ):
        with raises(BuildError, "build_failed", naming=message):
            check_engine(tmp_path, recipe(**asked | other), "1.2.1", LOG)
    write(tmp_path, CONFIG)
    with raises(BuildError, "build_failed", naming="logits"):
        check_engine(tmp_path, recipe(gather_context_logits=True), "1.2.1", LOG)


@pytest.mark.parametrize(
    ("config", "messages"),
    [
        ("{", ("config.json",)),
        ({"version": "1.2.1"}, ("config.json", "'pretrained_config'")),
        (changed("version", "1.1.0"), ("TensorRT-LLM 1.1.0", "1.2.1")),
        (changed("pretrained_config.mapping.tp_size", 2), ("tensor_parallel 2", "pipeline_parallel 1")),
        (changed("pretrained_config.quantization.quant_algo", None), ("quantization is None", "fp8")),
        (changed("pretrained_config.quantization.kv_cache_quant_algo", "INT8"), ("KV cache is INT8", "fp8")),
        (changed("build_config.max_batch_size", 4), ("max_batch_size is 4", "8")),
        (changed("build_config.max_seq_len", None), ("max_seq_len is 0", "64")),
    ],
)
def test_an_engine_that_is_another_is_told_with_the_log(
    tmp_path: Path, config: dict[str, Any] | str, messages: tuple[str, ...]
) -> None:
    write(tmp_path, config)
    with raises(BuildError, "build_failed", naming=(*messages, str(LOG))):
        check_engine(tmp_path, recipe(), "1.2.1", LOG)


def test_a_rank_that_is_missing_or_empty(tmp_path: Path) -> None:
    write(tmp_path, changed("pretrained_config.mapping.tp_size", 2), ranks=2)
    (tmp_path / "rank1.engine").write_bytes(b"")
    with raises(BuildError, "build_failed", naming=("1", "2")):
        check_engine(tmp_path, recipe(tensor_parallel=2), "1.2.1", LOG)
    (tmp_path / "config.json").unlink()
    with raises(BuildError, "build_failed", naming="config.json"):
        check_engine(tmp_path, recipe(), "1.2.1", LOG)
