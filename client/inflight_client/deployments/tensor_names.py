"""Tensor names of the deployments: TensorRT-LLM's `ensemble` and `tensorrt_llm_bls`, and its `llmapi`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from inflight_client.sampling import PARAMETERS


@dataclass(frozen=True)
class TensorNames:
    """Input names by option of a call; if there are several, the first that exists is used.

    Such a deployment does not support options without a name here.
    """

    max_tokens: str
    stream: str
    exclude_input: str
    options: Mapping[str, tuple[str, ...]]


TEXT_MODEL = TensorNames(
    max_tokens="max_tokens",
    stream="stream",
    exclude_input="exclude_input_in_output",
    options={
        **{name: each.inputs or (name,) for name, each in PARAMETERS.items()},
        "logit_bias": ("logit_bias_ids",),
        "allowed_token_ids": ("allowed_token_ids",),
        "stop": ("stop_words",),
        "bad_words": ("bad_words",),
        "guide": ("guided_decoding_guide_type",),
        "return_log_probs": ("return_log_probs",),
        "top_log_probs": ("num_top_log_probs",),
        "return_prompt_log_probs": ("return_prompt_log_probs",),
        "return_token_ids": ("return_token_ids",),
        "return_perf_metrics": ("return_perf_metrics",),
        "priority": ("priority",),
    },
)

TOKEN_MODEL = replace(
    TEXT_MODEL,
    max_tokens="request_output_len",
    stream="streaming",
    options={
        **TEXT_MODEL.options,
        **{name: (each.engine_input,) for name, each in PARAMETERS.items() if each.engine_input},
        "stop": ("stop_words", "stop_words_list"),
        "bad_words": ("bad_words_list",),
    },
)
"""Of `tensorrt_llm`: token ids in, token ids out."""

LLMAPI = TensorNames(
    max_tokens="sampling_param_max_tokens",
    stream="streaming",
    exclude_input="sampling_param_exclude_input_from_output",
    options={
        "temperature": ("sampling_param_temperature",),
        "top_k": ("sampling_param_top_k",),
        "top_p": ("sampling_param_top_p",),
        "seed": ("sampling_param_seed",),
        "presence_penalty": ("sampling_param_presence_penalty",),
        "frequency_penalty": ("sampling_param_frequency_penalty",),
        "stop": ("sampling_param_stop",),
        "return_perf_metrics": ("sampling_param_return_perf_metrics",),
    },
)

GUIDE_TEXT = "guided_decoding_guide"
BIAS_VALUES = "logit_bias_values"

TIMING_OUTPUTS = ("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns")
"""Outputs with times of the engine's clock, in nanoseconds."""
