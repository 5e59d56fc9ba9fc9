"""Parts of config.json files as models are published: what says how large a model is, where it is there."""

from __future__ import annotations

from typing import Any

_QWEN_VL = {"model_type": "qwen2_5_vl", "hidden_size": 3584, "num_attention_heads": 28, "num_hidden_layers": 28}
_LLAMA_4 = {
    "hidden_size": 5120,
    "num_attention_heads": 40,
    "num_hidden_layers": 48,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 202048,
    "max_position_embeddings": 10485760,
    "torch_dtype": "bfloat16",
}
SHAPES: dict[str, dict[str, Any]] = {
    "DeepseekV3ForCausalLM": {
        "model_type": "deepseek_v3",
        "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
        "hidden_size": 7168,
        "num_attention_heads": 128,
        "num_hidden_layers": 61,
        "num_key_value_heads": 128,
        "vocab_size": 129280,
        "max_position_embeddings": 163840,
        "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
        "torch_dtype": "bfloat16",
    },
    "Gemma3ForCausalLM": {
        "model_type": "gemma3_text",
        "hidden_size": 1152,
        "head_dim": 256,
        "num_attention_heads": 4,
        "num_hidden_layers": 26,
        "num_key_value_heads": 1,
        "vocab_size": 262144,
        "max_position_embeddings": 32768,
        "torch_dtype": "bfloat16",
    },
    # 4B: neither heads nor vocabulary nor length.
    "Gemma3ForConditionalGeneration": {
        "model_type": "gemma3",
        "eos_token_id": [1, 106],
        "image_token_index": 262144,
        "text_config": {
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "model_type": "gemma3_text",
            "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
        },
        "torch_dtype": "bfloat16",
        "vision_config": {"hidden_size": 1152, "num_attention_heads": 16, "num_hidden_layers": 27},
    },
    "GptOssForCausalLM": {
        "model_type": "gpt_oss",
        "head_dim": 64,
        "hidden_size": 2880,
        "max_position_embeddings": 131072,
        "num_attention_heads": 64,
        "num_hidden_layers": 24,
        "num_key_value_heads": 8,
        "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]},
        "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096},
        "vocab_size": 201088,
    },
    "Llama4ForCausalLM": {"model_type": "llama4_text", **_LLAMA_4},
    "Llama4ForConditionalGeneration": {
        "model_type": "llama4",
        "text_config": {"model_type": "llama4_text", "eos_token_id": [200001, 200007, 200008], **_LLAMA_4},
        "torch_dtype": "bfloat16",
        "vision_config": {"model_type": "llama4_vision_model", "num_hidden_layers": 34},
    },
    "Phi4MMForCausalLM": {
        "model_type": "phi4mm",
        "auto_map": {"AutoConfig": "configuration_phi4mm.Phi4MMConfig"},
        "hidden_size": 3072,
        "num_attention_heads": 24,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "vocab_size": 200064,
        "max_position_embeddings": 131072,
        "torch_dtype": "bfloat16",
    },
    "Qwen2_5_VLForConditionalGeneration": {
        **_QWEN_VL,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
        "max_position_embeddings": 128000,
        "torch_dtype": "bfloat16",
        "vision_config": {"depth": 32, "hidden_size": 1280},
    },
    "Qwen3NextForCausalLM": {
        "model_type": "qwen3_next",
        "head_dim": 256,
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "num_hidden_layers": 48,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
        "max_position_embeddings": 262144,
        "torch_dtype": "bfloat16",
    },
    "Mistral3ForConditionalGeneration": {
        "model_type": "mistral3",
        "text_config": {
            "model_type": "mistral",
            "head_dim": 128,
            "hidden_size": 5120,
            "num_attention_heads": 32,
            "num_hidden_layers": 40,
            "num_key_value_heads": 8,
            "vocab_size": 131072,
            "max_position_embeddings": 131072,
        },
        "torch_dtype": "bfloat16",
        "vision_config": {"model_type": "pixtral", "num_hidden_layers": 24},
    },
    # A part of another name, of a class that transformers doesn't have.
    "NemotronH_Nano_VL_V2": {
        "model_type": "NemotronH_Nano_VL_V2",
        "llm_config": {
            "model_type": "nemotron_h",
            "head_dim": 128,
            "hidden_size": 5120,
            "num_attention_heads": 40,
            "num_hidden_layers": 62,
            "num_key_value_heads": 8,
            "vocab_size": 132096,
            "max_position_embeddings": 131072,
            "torch_dtype": "bfloat16",
        },
        "torch_dtype": "bfloat16",
    },
}
"""By architecture: those that only the LLM API runs, and further ones whose text is a part."""
