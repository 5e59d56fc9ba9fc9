"""What parameters of TensorRT-LLM's backend are refused for: a corpus, each answered in one sentence."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from inflight.deploy.errors import DeployError
from inflight.deploy.repository.tensorrt_llm.rules import check_paths, lookahead_draft_tokens
from tests.deploy.repository.tensorrt_llm.example_engines import ENCODER, EXTERNAL, LOOKAHEAD, MEDUSA, NO_FMHA, texts
from tests.fixtures.errors import raises

WRONG: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"kv_cache_free_gpu_memory_fraction": "0.5"}, {}, "did you mean kv_cache_free_gpu_mem_fraction?"),
    ({"kv_cache_free_gpu_mem_fraction": "1"}, {}, "is '1'; it must be a number less than 1."),
    ({"kv_cache_free_gpu_mem_fraction": "0"}, {}, "it must be a number greater than 0."),
    ({"kv_cache_free_gpu_mem_fraction": "nan"}, {}, "is 'nan'; it must be a finite number."),
    ({"kv_cache_free_gpu_mem_fraction": "90%"}, {}, "it must be a number."),
    ({"zzz": "1"}, {}, "There is no parameter 'zzz' of tensorrt_llm; there are add_special_tokens, "),
    ({"gpt_model_path": "/engines"}, {}, "gpt_model_path can't be set here: the engine directory sets it"),
    ({"decoupled_mode": "false"}, {}, "decoupled_mode can't be set here: use --no-decoupled; leave it out."),
    ({"enable_trt_overlap": "true"}, {}, "There is no parameter 'enable_trt_overlap'"),
    ({"max_beam_width": "2.5"}, {}, "max_beam_width is '2.5'; it must be a whole number."),
    ({"max_beam_width": ""}, {}, "max_beam_width is ''; it must be a whole number."),
    ({"max_beam_width": "${max_beam_width}"}, {}, "max_beam_width is '${max_beam_width}'; it must be a whole number."),
    ({"max_beam_width": "0"}, {}, "it must be a number of at least 1."),
    ({"max_beam_width": "8"}, {}, "max_beam_width is 8 and the engine was built for 4 at most"),
    ({"stats_check_period_ms": str(2**31)}, {}, "it must be a number of at most 2147483647."),
    ({"batch_scheduler_policy": "static_batch"}, {}, "it must be one of guaranteed_no_evict or max_utilization."),
    ({"gpt_model_type": "inflight"}, {}, "it must be one of inflight_fused_batching or inflight_batching."),
    ({"gpt_model_type": "V1"}, {}, "gpt_model_type is V1, and TensorRT-LLM no longer has static batching; leave"),
    ({"gpt_model_type": "v1"}, {}, "no longer has static batching"),
    ({"kv_cache_onboard_blocks": "false"}, {}, "engine with paged context FMHA needs its blocks copied back"),
    ({"enable_kv_cache_reuse": "false"}, {"features": EXTERNAL}, "that is off; leave enable_kv_cache_reuse and --no"),
    ({}, {"features": {**EXTERNAL, "paged_context_fmha": False}}, "that is off; build it with paged context FMHA."),
    ({"max_attention_window_size": "512,1024"}, {"features": LOOKAHEAD}, "doesn't support windows of several sizes"),
    ({"max_attention_window_size": "1,2,3,4,5"}, {}, "holds 5 numbers and the model has 4 layers"),
    ({"speculative_decoding_fast_logits": "true"}, {}, "needs an orchestrator that spawns no processes; give"),
    ({"sink_token_length": "4096"}, {}, "sink_token_length is 4096 and the engine's longest sequence"),
    ({"participant_ids": "0;1"}, {}, "names rank 0, which is the orchestrator's; number from 1."),
    ({"participant_ids": "1,2;2,3"}, {"tensor_parallel": 2}, "names one rank in two instances"),
    ({"medusa_choices": "{0},{0}"}, {"features": MEDUSA}, "holds the path {0} twice; name each once."),
    ({"medusa_choices": "0"}, {"features": MEDUSA}, "is '0'; it must be paths in braces, as {0}, {0, 1}."),
    ({"max_beam_width": True}, {}, "max_beam_width is True; it must be a number."),
    ({"max_attention_window_size": [True]}, {}, "max_attention_window_size holds True; it must be a number."),
    ({"kv_cache_free_gpu_mem_fraction": True}, {}, "is True; it must be a number."),
    ({"gpu_weights_percent": True}, {}, "is True; it must be a number."),
    ({"gpu_device_ids": True}, {}, "holds True; it must be a number."),
    ({"gpu_device_ids": []}, {}, "gpu_device_ids is []; it must be a list of at least 1."),
    ({"executor_worker_path": ""}, {}, "executor_worker_path is ''; it must be an absolute path."),
    ({"executor_worker_path": "  "}, {}, "it must be an absolute path."),
    ({"executor_worker_path": "/a\nb"}, {}, "it must be an absolute path."),
    ({"executor_worker_path": 5}, {}, "executor_worker_path is 5; it must be an absolute path."),
    ({"xgrammar_tokenizer_info_path": "guides.json"}, {}, "it must be an absolute path."),
    ({"decoding_mode": 5}, {}, "decoding_mode is 5; it must be one of top_k, top_p"),
    ({"enable_chunked_context": "maybe"}, {}, "enable_chunked_context is 'maybe'; it must be true or false."),
    ({"enable_chunked_context": "true"}, NO_FMHA, "paged context FMHA"),
    ({"enable_kv_cache_reuse": True}, NO_FMHA, "enable_kv_cache_reuse needs an engine"),
    ({"decoding_mode": "greedy"}, {}, "it must be one of top_k, top_p"),
    ({"decoding_mode": "beam_search"}, {}, "beam_search and max_beam_width is 1; give a max_beam_width of 2 or more."),
    ({"decoding_mode": "top_k", "max_beam_width": 2}, {}, "decoding_mode top_k supports only one beam"),
    ({"decoding_mode": "medusa"}, {}, "the engine was built without speculation; build one with"),
    ({"decoding_mode": "eagle"}, {"features": MEDUSA}, "which needs the decoding_mode medusa and not eagle"),
    ({"decoding_mode": "top_p"}, {"features": LOOKAHEAD}, "needs the decoding_mode lookahead and not top_p"),
    ({"max_beam_width": 2}, {"features": MEDUSA}, "decoding_mode medusa supports only one beam"),
    ({"medusa_choices": "{0}"}, {}, "medusa_choices requires decoding_mode medusa"),
    ({"medusa_choices": "{0}, {x}"}, {"features": MEDUSA}, "medusa_choices holds 'x'; it must be a whole number."),
    ({"medusa_choices": "{0}, {0, 1}, {1}"}, {"features": MEDUSA}, "holds 3 paths and the engine takes 2 draft tokens"),
    ({"eagle_choices": "{0}"}, {"features": MEDUSA}, "eagle_choices requires decoding_mode eagle"),
    ({"lookahead_window_size": 4}, {}, "requires an engine built for lookahead_decoding"),
    ({"lookahead_window_size": 4}, {"features": LOOKAHEAD}, "lookahead_ngram_size is missing while others"),
    (
        {"lookahead_window_size": 7, "lookahead_ngram_size": 7, "lookahead_verification_set_size": 7},
        {"features": LOOKAHEAD},
        "need 83 draft tokens and the engine takes 15",
    ),
    ({"max_tokens_in_paged_kv_cache": "63"}, {}, "is 63, in which no request fits; give at least 64"),
    ({"max_attention_window_size": 1024, "max_beam_width": 2}, {}, "which TensorRT-LLM doesn't support with beams"),
    ({"max_tokens_in_paged_kv_cache": "lots"}, {}, "it must be a whole number."),
    ({"max_attention_window_size": "0"}, {}, "it must be a number of at least 1."),
    ({"max_attention_window_size": []}, {}, "max_attention_window_size is []; it must be a list of at least 1."),
    ({"sink_token_length": "0"}, {}, "it must be a number of at least 1."),
    ({"cross_kv_cache_fraction": "0.5"}, {}, "is for models with an encoder, and requires encoder_model_path."),
    ({"encoder_model_path": "/encoder"}, {}, "is for models with an encoder, which demo doesn't have"),
    ({"encoder_model_path": ""}, ENCODER, "encoder_model_path is ''; it must be an absolute path."),
    ({"guided_decoding_backend": "outlines"}, {}, "it must be one of xgrammar or none."),
    ({"guided_decoding_backend": "xgrammar"}, {}, "give xgrammar_tokenizer_info_path, or build"),
    (
        {"guided_decoding_backend": "none", "xgrammar_tokenizer_info_path": "/guides.json"},
        {},
        "has no effect with guided_decoding_backend none",
    ),
    ({"gpu_device_ids": "0,1"}, {}, "gives an instance 2 ('0,1') and the engine was made for 1"),
    ({"gpu_device_ids": "0,1;2"}, {"tensor_parallel": 2}, "gives an instance 1 ('2') and the engine was made for 2"),
    ({"gpu_device_ids": "1,1"}, {"tensor_parallel": 2}, "names one twice in '1,1'"),
    ({"gpu_device_ids": "cuda:0"}, {}, "gpu_device_ids holds 'cuda:0'; it must be a whole number."),
    ({"gpu_device_ids": "-1"}, {}, "it must be a number of at least 0."),
    ({"gpu_device_ids": "0;1", "participant_ids": "1"}, {}, "is for 2 instances and participant_ids for 1"),
    ({"num_nodes": "2"}, {"tensor_parallel": 3}, "num_nodes is 2, which does not divide the engine's 3 ranks"),
    ({"gpu_weights_percent": "50"}, {}, "it must be a number of at most 1."),
    ({"lora_cache_gpu_memory_fraction": "0.1"}, {}, "lora_cache_gpu_memory_fraction needs an engine built for LoRA"),
    (
        {"lora_cache_optimal_adapter_size": "128"},
        {"features": {"lora": True}},
        "lora_cache_optimal_adapter_size is 128 and lora_cache_max_adapter_size 64",
    ),
    ({"cuda_graph_cache_size": "8"}, {}, "cuda_graph_cache_size has no effect without cuda_graph_mode"),
    ({"postprocessing_instance_count": "4"}, {}, "streams need one process that knows their earlier tokens"),
    ({"preprocessing_instance_count": "1000"}, {}, "it must be a number of at most 64."),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "manifest", "sentence"), WRONG)
def test_what_can_not_work_is_refused_in_one_sentence(
    settings: dict[str, Any], manifest: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(DeployError) as caught:
        texts(settings, **manifest)
    message = str(caught.value)
    assert sentence in message
    assert caught.value.code == "invalid_parameter"
    assert "\n" not in message
    assert "pydantic" not in message
    assert not re.search(r"it must be [A-Z]", message), "no sentence"


@pytest.mark.parametrize("name", ["xgrammar_tokenizer_info_path", "lora_prefetch_dir", "encoder_model_path"])
def test_who_serves_is_told_of_a_path_that_is_not_there(tmp_path: Path, name: str) -> None:
    check_paths({name: str(tmp_path), "executor_worker_path": "/only/in/the/container"})
    check_paths({name: ""})
    with raises(DeployError, "invalid_parameter", naming=(name, f"{tmp_path}/gone")):
        check_paths({name: f"{tmp_path}/gone"})


def test_lookahead_needs_what_upstreams_example_says() -> None:
    assert lookahead_draft_tokens(7, 7, 7) == 83
