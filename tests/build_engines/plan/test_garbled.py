"""No value of any field of a config.json is a traceback, and none takes long."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from build_engines.errors import BuildError
from inflight.cli import cli
from tests.build_engines.plan.published import SHAPES

_MODELS = (
    "gpt2",
    "opt-13b",
    "llama-3.1-8b",
    "qwen2.5-7b",
    "qwen3-235b-a22b",
    "gemma-2-9b",
    "mixtral-8x7b",
    "falcon-7b",
)
_MORE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "tie_word_embeddings": False,
    "head_dim": 64,
    "layer_types": None,
    "mlp_only_layers": [],
    "decoder_sparse_step": 1,
    "use_sliding_window": True,
    "kv_lora_rank": None,
    "is_encoder_decoder": False,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0},
    "torch_dtype": "bfloat16",
}
_NUMBERS = st.one_of(
    st.integers(-5, 2000), st.sampled_from([10**9, 10**18, 10**300, -(10**30), 0.5, 1e300, float("nan"), float("inf")])
)
_LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    _NUMBERS,
    st.text(max_size=20),
    st.sampled_from(["sliding_attention", "full_attention", "x" * 4096, "\ud800", "\n", "falcon", "gemma3", "mamba"]),
)
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=6,
)
_GARBLED = st.sampled_from(_MODELS).flatmap(
    lambda model: st.tuples(
        st.just(SHAPES[model]),
        st.dictionaries(st.sampled_from(sorted({*SHAPES[model], *_MORE})), _VALUES, min_size=1, max_size=3),
    )
)
_TARGETS = (
    ("--gpu", "h100", "--gpus", "8"),
    ("--gpu", "b200", "--target", "llmapi"),
    ("--target", "openvino", "--memory", "16GiB"),
)


def plan(directory: Path, *arguments: str) -> str:
    """What the command prints, or the sentence that it ends with. Whatever else it raises goes on."""
    from click.testing import CliRunner

    done = CliRunner().invoke(cli, ["plan", str(directory), *arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit | BuildError):
        raise done.exception
    return str(done.exception) if isinstance(done.exception, BuildError) else done.output


@settings(max_examples=4 * settings().max_examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(garbled=_GARBLED, target=st.sampled_from(_TARGETS))
def test_a_garbled_config_is_planned_or_refused_in_one_sentence(
    garbled: tuple[dict[str, Any], dict[str, Any]], target: tuple[str, ...]
) -> None:
    config, changes = garbled
    with tempfile.TemporaryDirectory() as name:
        Path(name, "config.json").write_text(json.dumps(config | changes), encoding="utf-8")
        text = plan(Path(name), *target)
        assert text
        text.encode()
        assert "Recommended" in text or "Nothing fits" in text or (text.count("\n") == 0 and len(text) < 1000), text


@pytest.mark.parametrize("value", [9_999, 10**18, 10**300, True, "x", [], {}])
@pytest.mark.parametrize("field", ["num_hidden_layers", "hidden_size", "sliding_window"])
def test_odd_sizes_are_answered_at_once(tmp_path: Path, field: str, value: object) -> None:
    config = SHAPES["mistral-7b-v0.1"] | {field: value}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    begun = time.process_time()
    text = plan(tmp_path, "--gpu", "h100", "--gpus", "64")
    assert time.process_time() - begun < 5
    assert "Recommended" in text or "Nothing fits" in text or field in text


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "1" * 5000, '{"hidden_size": ' + "1" * 5000 + "}"])
def test_what_json_can_not_read_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    answer = plan(tmp_path, "--gpu", "h100")
    assert "config.json is not" in answer
    assert "\n" not in answer
