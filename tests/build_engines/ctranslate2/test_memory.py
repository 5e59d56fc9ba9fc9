"""The plan of models with an encoder and a decoder: from the config alone, and from a model of CTranslate2."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from build_engines.ctranslate2.memory import BATCH_CLIPS, BATCH_TOKENS, PROCESSES, plan_seq2seq
from build_engines.errors import BuildError
from tests.commands.plan.plan_reports import plan, report
from tests.fixtures.errors import raises

GIB = 1 << 30
ROOT = Path(__file__).resolve().parents[3]
WHISPER_LARGE_V3 = {
    "model_type": "whisper",
    "architectures": ["WhisperForConditionalGeneration"],
    "d_model": 1280,
    "encoder_layers": 32,
    "decoder_layers": 32,
    "encoder_ffn_dim": 5120,
    "num_mel_bins": 128,
    "vocab_size": 51866,
    "max_source_positions": 1500,
    "max_target_positions": 448,
}
T5_SMALL = {
    "model_type": "t5",
    "architectures": ["T5ForConditionalGeneration"],
    "d_model": 512,
    "d_ff": 2048,
    "d_kv": 64,
    "num_layers": 6,
    "num_heads": 8,
    "vocab_size": 32128,
    "n_positions": 512,
}
FLAN_T5_BASE = T5_SMALL | {
    "d_model": 768,
    "num_layers": 12,
    "num_decoder_layers": 12,
    "num_heads": 12,
    "feed_forward_proj": "gated-gelu",
    "tie_word_embeddings": False,
}
BART_LARGE = {
    "model_type": "bart",
    "architectures": ["BartForConditionalGeneration"],
    "d_model": 1024,
    "vocab_size": 50265,
    "encoder_layers": 12,
    "decoder_layers": 12,
    "encoder_ffn_dim": 4096,
    "max_position_embeddings": 1024,
}
NLLB_600M = BART_LARGE | {
    "model_type": "m2m_100",
    "architectures": ["M2M100ForConditionalGeneration"],
    "vocab_size": 256206,
}


@pytest.mark.parametrize(
    ("content", "parameters"),
    [
        (WHISPER_LARGE_V3, 1_543_490_560),
        (T5_SMALL, 60_506_624),
        (FLAN_T5_BASE, 247_577_856),
        (BART_LARGE, 406_291_456),
        (NLLB_600M, 615_073_792),
    ],
)
def test_the_config_alone_gives_the_number_of_parameters(
    content: dict[str, Any], parameters: int, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(content))
    found = plan_seq2seq(tmp_path, memory=GIB, device="here")
    assert found.counted_from == "config.json"
    assert found.parameters == pytest.approx(parameters, rel=0.01)


def test_a_speech_model_is_planned_from_its_file_for_two_processes(whisper_directory: Path) -> None:
    found = report(whisper_directory, "--memory", "4GiB")
    assert (found["task"], found["counted_from"], found["recommended"]) == ("transcribe", "weight files", "fp32")
    assert found["parameters"] == pytest.approx(37_184_640, rel=0.01)
    assert {each["precision"]: each["weights"] for each in found["fits"]} == {
        name: 2 * size * found["parameters"] for name, size in (("fp32", 4), ("int8", 1))
    }
    assert not plan_seq2seq(whisper_directory, memory=GIB // 2, device="here").recommended


def test_the_plan_is_for_the_defaults_of_serving() -> None:
    def default(model: str, name: str) -> int:
        config = (ROOT / "model_repository" / model / "config.pbtxt").read_text(encoding="utf-8")
        found = re.search(rf'key: "{name}" value: {{ string_value: "(\d+)" }}', config)
        assert found is not None
        return int(found[1])

    assert default("whisper", "max_batch_texts") == BATCH_CLIPS
    assert default("text2text", "max_batch_tokens") == BATCH_TOKENS
    assert {default(model, "num_requests") for model in ("whisper", "text2text")} == {PROCESSES}


def test_larger_batches_take_more(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(T5_SMALL))
    small, large = (
        plan_seq2seq(tmp_path, memory=GIB, device="here", max_batch_tokens=tokens) for tokens in (None, 8192)
    )
    assert (small.batch_tokens, large.batch_tokens) == (2048, 8192)
    assert small.fits[0].needed < large.fits[0].needed


@pytest.mark.parametrize(
    ("content", "options", "code", "named"),
    [
        (T5_SMALL, ["--precision", "int4"], 2, "int4"),
        (T5_SMALL, ["--target", "ctranslate2", "--gpu", "h100"], 2, "--gpu"),
        ({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, ["--target", "ctranslate2"], 1, "--target"),
        (T5_SMALL | {"d_model": "wide"}, [], 1, "d_model"),
    ],
)
def test_what_cannot_be_planned_is_named(
    content: dict[str, Any], options: list[str], code: int, named: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(content))
    done = plan(tmp_path, *options)
    assert done.exit_code == code
    assert named in done.output + str(done.exception)


def test_another_model_has_no_such_plan(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    with raises(BuildError, "unsupported_architecture"):
        plan_seq2seq(tmp_path, memory=GIB, device="here")
