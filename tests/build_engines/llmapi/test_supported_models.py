"""What the LLM API runs is built as it is published, and what it doesn't is refused before anything is laid out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from build_engines.build import BuildOptions, Built, build_engine
from build_engines.capabilities.llmapi import LATER_ARCHITECTURES, SUPPORTED_ARCHITECTURES
from build_engines.capabilities.tensorrt_llm import PYTORCH_ONLY
from build_engines.errors import BuildError
from build_engines.llmapi.arguments import LlmArguments
from build_engines.llmapi.target import model_yaml
from tests.build_engines.build_runs import generator
from tests.build_engines.llmapi.published_configs import SHAPES
from tests.fixtures.errors import raises


def become(checkpoint: Path, architecture: str, shape: dict[str, Any]) -> None:
    """Give the checkpoint another config; its weights are looked at one by one alone."""
    (checkpoint / "config.json").write_text(json.dumps({"architectures": [architecture], **shape}))


def built(checkpoint: Path, out: Path, arguments: LlmArguments | None = None) -> Built:
    return build_engine(str(checkpoint), out, BuildOptions("llmapi", settings=arguments))


def test_each_name_stands_in_one_list_and_what_others_send_here_is_known() -> None:
    assert len({*SUPPORTED_ARCHITECTURES, *LATER_ARCHITECTURES}) == len(SUPPORTED_ARCHITECTURES) + len(
        LATER_ARCHITECTURES
    )
    assert set(PYTORCH_ONLY) <= set(SUPPORTED_ARCHITECTURES) & SHAPES.keys()


@pytest.mark.parametrize("architecture", SHAPES)
def test_models_as_they_are_published_can_be_built(checkpoint: Path, architecture: str) -> None:
    become(checkpoint, architecture, SHAPES[architecture])
    arguments = yaml.safe_load(model_yaml(checkpoint, BuildOptions("llmapi")))
    assert arguments["max_seq_len"] >= 32768
    assert arguments["dtype"] == ("bfloat16" if architecture == "GptOssForCausalLM" else "auto")


def test_the_manifest_tells_of_the_part_that_writes(checkpoint: Path, tmp_path: Path) -> None:
    """What Gemma 3 4B leaves out is 8 heads of 256 numbers, 4 for keys and values, and a length of 128 K."""
    (checkpoint / "generation_config.json").unlink(missing_ok=True)
    become(checkpoint, "Gemma3ForConditionalGeneration", SHAPES["Gemma3ForConditionalGeneration"])
    manifest = generator(built(checkpoint, tmp_path / "engine"))
    assert (manifest.layers, manifest.kv_heads, manifest.head_dim) == (34, 4, 256)
    assert (manifest.max_seq_len, manifest.vocab_size) == (131072, 262208)
    assert (manifest.precision, manifest.kv_cache_precision, manifest.end_ids) == ("bf16", "bf16", [1, 106])


def test_gpt_oss_stays_as_it_is_published(checkpoint: Path, tmp_path: Path) -> None:
    become(checkpoint, "GptOssForCausalLM", SHAPES["GptOssForCausalLM"])
    done = built(checkpoint, tmp_path / "engine")
    assert (generator(done).precision, generator(done).kv_cache_precision) == ("mxfp4", "bf16")
    assert any("has no torch_dtype of 16 or 32 bits" in note for note in done.notes)
    assert not any("weights are float32" in note for note in done.notes)


def test_the_part_may_have_the_ids_that_end_an_answer(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / "generation_config.json").unlink(missing_ok=True)
    become(checkpoint, "Llama4ForConditionalGeneration", SHAPES["Llama4ForConditionalGeneration"])
    assert generator(built(checkpoint, tmp_path / "engine")).end_ids == [1, 200001, 200007, 200008]


@pytest.mark.parametrize(
    ("architecture", "more", "messages"),
    [
        ("T5ForConditionalGeneration", {"is_encoder_decoder": True}, ("encoder",)),
        ("WhisperForConditionalGeneration", {"is_encoder_decoder": True}, ("encoder",)),
        ("BertModel", {}, ("…ForCausalLM",)),
        ("BertForSequenceClassification", {}, ("model_type",)),
        ("GPT2LMHeadModel", {}, ("--target tensorrt-llm", "--llm-argument trust_remote_code=true")),
        ("Gemma2ForCausalLM", {}, ("--target tensorrt-llm", "--llm-argument trust_remote_code=true")),
        ("BrandNewForCausalLM", {}, ("--llm-argument trust_remote_code=true",)),
    ],
)
def test_what_it_does_not_run_is_refused(
    checkpoint: Path, tmp_path: Path, architecture: str, more: dict[str, Any], messages: tuple[str, ...]
) -> None:
    become(checkpoint, architecture, SHAPES["Qwen3NextForCausalLM"] | more)
    with raises(BuildError, "unsupported_architecture", naming=(architecture, *messages)) as raised:
        built(checkpoint, tmp_path / "engine")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("architecture", "trusted", "sentence"),
    [
        ("Cohere2ForCausalLM", False, "TensorRT-LLM 1.2 doesn't support Cohere2ForCausalLM"),
        ("BrandNewForCausalLM", True, "TensorRT-LLM doesn't list BrandNewForCausalLM"),
        ("Phi4MMForCausalLM", False, "was not copied"),
    ],
)
def test_what_may_not_load_is_said_at_the_build(
    checkpoint: Path, tmp_path: Path, architecture: str, trusted: bool, sentence: str
) -> None:
    become(checkpoint, architecture, SHAPES["Phi4MMForCausalLM"])
    done = built(checkpoint, tmp_path / "engine", LlmArguments(trust_remote_code=trusted))
    assert any(sentence in note for note in done.notes)
    assert any("was not copied" in note for note in done.notes) == (not trusted)
