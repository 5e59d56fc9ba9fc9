"""The parameters of TensorRT-LLM's backend: what is written, and a corpus of what is refused, each in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from build_engines.engine_files import EngineFile
from inflight.deploy.errors import DeployError
from inflight.deploy.repository.option_checks import check_options
from inflight.deploy.repository.options import DeploymentOptions
from inflight.deploy.repository.tensorrt_llm.backend import XGRAMMAR_TOKENIZER_FILE, read_parameters
from inflight.deploy.repository.tensorrt_llm.parameters import TensorRtLlmParameters
from tests.deploy.repository.tensorrt_llm.example_engines import (
    ENCODER,
    EXTERNAL,
    LOOKAHEAD,
    MEDUSA,
    NO_FMHA,
    gpu_manifest,
    texts,
)
from tests.fixtures.errors import raises
from tests.fixtures.manifests import engine_set

CONTRACT = json.loads((Path(__file__).parents[3] / "data" / "tensorrt_llm_triton.json").read_text())


def test_every_parameter_of_upstream_is_known_and_no_other() -> None:
    theirs = set(CONTRACT["models"]["tensorrt_llm"]["parameters"])
    from_the_engine = {"gpt_model_path", "tokenizer_dir", "FORCE_CPU_ONLY_INPUT_TENSORS"}
    around = {
        *("preprocessing_instance_count", "postprocessing_instance_count", "add_special_tokens"),
        "skip_special_tokens",
    }
    not_in_the_template = {"recv_poll_period_ms"}
    mine = set(TensorRtLlmParameters.model_fields)
    assert mine - around - not_in_the_template == theirs - from_the_engine


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"kv_cache_free_gpu_mem_fraction": "0.5"}, {"kv_cache_free_gpu_mem_fraction": "0.5"}),
        ({"enable_kv_cache_reuse": "False"}, {"enable_kv_cache_reuse": "false"}),
        ({"max_beam_width": "4"}, {"max_beam_width": "4", "decoding_mode": "beam_search"}),
        ({"max_attention_window_size": "1024, 4096"}, {"max_attention_window_size": "1024,4096"}),
        ({"max_attention_window_size": 1024}, {"max_attention_window_size": "1024"}),
        ({"gpu_device_ids": "3"}, {"gpu_device_ids": "3"}),
        ({"gpu_device_ids": [[0], [1]]}, {"gpu_device_ids": "0;1"}),
        ({"gpu_device_ids": 3}, {"gpu_device_ids": "3"}),
        ({"gpu_device_ids": ["0", "1"]}, {"gpu_device_ids": "0;1"}),
        ({"gpu_device_ids": "0; 1", "participant_ids": "1;2"}, {"gpu_device_ids": "0;1", "participant_ids": "1;2"}),
        ({"guided_decoding_backend": "none"}, {"guided_decoding_backend": ""}),
        (
            {"xgrammar_tokenizer_info_path": "/guides.json"},
            {"guided_decoding_backend": "xgrammar", "xgrammar_tokenizer_info_path": "/guides.json"},
        ),
    ],
)
def test_what_is_asked_for_is_written_as_upstream_reads_it(settings: dict[str, Any], expected: dict[str, str]) -> None:
    assert expected.items() <= texts(settings).items()


@pytest.mark.parametrize(
    ("manifest", "settings", "expected"),
    [
        (NO_FMHA, {}, {"enable_kv_cache_reuse": "false", "enable_chunked_context": "false"}),
        ({"features": {"kv_cache_reuse": False}}, {}, {"enable_kv_cache_reuse": "false"}),
        ({"features": {"chunked_context": False}}, {}, {"enable_chunked_context": "false"}),
        (
            {"features": MEDUSA},
            {"medusa_choices": "{0}, {0, 1}"},
            {"decoding_mode": "medusa", "medusa_choices": "{0}, {0,1}"},
        ),
        (
            {"features": {**MEDUSA, "speculative_decoding_mode": "eagle"}},
            {"eagle_choices": [[0], [0, 1]]},
            {"decoding_mode": "eagle", "eagle_choices": "{0}, {0,1}"},
        ),
        ({"features": {"speculative_decoding_mode": "explicit_draft_tokens"}}, {}, {"decoding_mode": "redrafter"}),
        ({"features": {"speculative_decoding_mode": "draft_tokens_external"}}, {}, {"decoding_mode": "top_k_top_p"}),
        (
            {"features": LOOKAHEAD},
            {},
            {"lookahead_window_size": "4", "lookahead_ngram_size": "3", "lookahead_verification_set_size": "4"},
        ),
        ({"features": {"lora": True}}, {"lora_prefetch_dir": "/lora"}, {"lora_prefetch_dir": "/lora"}),
        (ENCODER, {"encoder_model_path": "/encoder"}, {"cross_kv_cache_fraction": "0.5"}),
        ({"tensor_parallel": 2}, {"gpu_device_ids": "0,1;2,3"}, {"gpu_device_ids": "0,1;2,3"}),
        ({"tensor_parallel": 2}, {"gpu_device_ids": [0, 1]}, {"gpu_device_ids": "0,1"}),
        ({"features": MEDUSA}, {"medusa_choices": "{0},\n  {0,1}"}, {"medusa_choices": "{0}, {0,1}"}),
        ({"features": {**EXTERNAL, "kv_cache_reuse": False}}, {}, {"enable_kv_cache_reuse": "true"}),
        ({"features": NO_FMHA["features"]}, {"kv_cache_onboard_blocks": "no"}, {"kv_cache_onboard_blocks": "false"}),
        (
            {"tensor_parallel": 2},
            {"participant_ids": [1, 2], "speculative_decoding_fast_logits": True},
            {"participant_ids": "1,2", "speculative_decoding_fast_logits": "true"},
        ),
    ],
)  # fmt: skip
def test_and_what_the_engine_needs(
    manifest: dict[str, Any], settings: dict[str, Any], expected: dict[str, str]
) -> None:
    assert expected.items() <= texts(settings, **manifest).items()


def test_guides_are_followed_where_the_engine_has_the_vocabulary() -> None:
    engine = Path("/engines/demo")
    has: dict[str, Any] = {"files": {XGRAMMAR_TOKENIZER_FILE: EngineFile(sha256="", bytes=2)}}
    on = {"guided_decoding_backend": "xgrammar", "xgrammar_tokenizer_info_path": f"{engine}/{XGRAMMAR_TOKENIZER_FILE}"}
    assert on.items() <= texts({}, engine, **has).items()
    assert texts({"guided_decoding_backend": "none"}, engine, **has)["xgrammar_tokenizer_info_path"] == ""
    assert texts({}, engine, features=MEDUSA, **has)["guided_decoding_backend"] == ""
    assert on.items() <= texts({"guided_decoding_backend": "xgrammar"}, engine, features=MEDUSA, **has).items()


def test_a_vocabulary_that_is_no_file_of_the_engines_must_be_named(tmp_path: Path) -> None:
    """It would not come along when the engine is assembled into a repository."""
    (tmp_path / XGRAMMAR_TOKENIZER_FILE).write_text("{}")
    assert texts({}, tmp_path)["guided_decoding_backend"] == ""
    named = str(tmp_path / XGRAMMAR_TOKENIZER_FILE)
    assert texts({"xgrammar_tokenizer_info_path": named}, tmp_path)["guided_decoding_backend"] == "xgrammar"


def test_the_options_that_have_a_flag_are_the_same_parameters() -> None:
    options = DeploymentOptions(kv_cache_tokens=4096, kv_cache_reuse=False, chunked_context=False)
    written = read_parameters(options, Path("/engines/demo"), gpu_manifest()).engine_model_parameters()
    assert written["max_tokens_in_paged_kv_cache"] == "4096"
    assert written["enable_kv_cache_reuse"] == written["enable_chunked_context"] == "false"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"draft_engine": Path("draft")}, "--draft-engine"),
        ({"prompt_lookup": True}, "--prompt-lookup"),
        ({"adapters": (Path(__file__),)}, "--lora"),
        ({"wrap_token_ids": True}, "token ids"),
        ({"reproducible": True}, "--reproducible"),
        ({"stream_interval": 8}, "--stream-interval"),
        ({"threads": 8}, "--threads"),
        ({"max_num_sequences": 8}, "engine is built"),
        ({"max_num_tokens": 8}, "engine is built"),
        (
            {"kv_cache_tokens": 4096, "settings": {"max_tokens_in_paged_kv_cache": 1}},
            "was given together with its option",
        ),
        ({"kv_cache_reuse": False, "settings": {"enable_kv_cache_reuse": True}}, "was given together with its option"),
    ],
)
def test_options_that_would_change_nothing_are_refused(options: dict[str, Any], sentence: str) -> None:
    with raises(DeployError, "invalid_parameter", naming=sentence):
        check_options(DeploymentOptions(**options), engine_set("/engines/demo", gpu_manifest()))


def test_postprocessing_may_run_several_times_where_nothing_streams() -> None:
    options = DeploymentOptions(decoupled=False, settings={"postprocessing_instance_count": 4})
    assert read_parameters(options, Path("/engines/demo"), gpu_manifest()).postprocessing_instance_count == 4
