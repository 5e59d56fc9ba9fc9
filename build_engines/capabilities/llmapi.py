"""The architectures (Hugging Face classes) that TensorRT-LLM's LLM API runs.

From NVIDIA/TensorRT-LLM: the classes that tensorrt_llm/_torch/models registers (`register_auto_model`) as of v1.2.0
(with K-EXAONE, Qwen3-VL and Starcoder2, without Command A of 1.3.0rc7), and docs/source/models/supported-models.md at
00b6d5a2 for later ones. Excluded are models that generate no text, have an encoder for the prompt, consist of several
folders (VILA), or need the AutoDeploy backend.
"""

from __future__ import annotations

SUPPORTED_ARCHITECTURES = (
    "DeciLMForCausalLM",
    "DeepseekV32ForCausalLM",
    "DeepseekV3ForCausalLM",
    "Exaone4ForCausalLM",
    "ExaoneMoEForCausalLM",
    "Gemma3ForCausalLM",
    "Gemma3ForConditionalGeneration",
    "Glm4MoeForCausalLM",
    "GptOssForCausalLM",
    "HCXVisionForCausalLM",
    "HunYuanDenseV1ForCausalLM",
    "HunYuanMoEV1ForCausalLM",
    "Llama4ForCausalLM",
    "Llama4ForConditionalGeneration",
    "LlamaForCausalLM",
    "LlavaNextForConditionalGeneration",
    "MiniMaxM2ForCausalLM",
    "Mistral3ForConditionalGeneration",
    "MistralForCausalLM",
    "MistralLarge3ForCausalLM",
    "MixtralForCausalLM",
    "MllamaForConditionalGeneration",
    "NemotronForCausalLM",
    "NemotronHForCausalLM",
    "NemotronH_Nano_VL_V2",
    "Phi3ForCausalLM",
    "Phi4MMForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen2VLForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "Qwen3NextForCausalLM",
    "Qwen3VLForConditionalGeneration",
    "Qwen3VLMoeForConditionalGeneration",
    "SeedOssForCausalLM",
    "Starcoder2ForCausalLM",
)
"""Architectures of 1.2 and of later versions."""

LATER_ARCHITECTURES = (
    "AfmoeForCausalLM",
    "Cohere2ForCausalLM",
    "DeepseekV4ForCausalLM",
    "Exaone4_5_ForConditionalGeneration",
    "Gemma4ForConditionalGeneration",
    "Gemma4UnifiedForConditionalGeneration",
    "GlmMoeDsaForCausalLM",
    "InklingForConditionalGeneration",
    "KimiK25ForConditionalGeneration",
    "LagunaForCausalLM",
    "MiniCPMV4_6ForConditionalGeneration",
    "MiniMaxM3SparseForCausalLM",
    "MiniMaxM3SparseForConditionalGeneration",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForCausalLM",
    "Qwen3_5MoeForConditionalGeneration",
    "Step3p5ForCausalLM",
    "Step3p7ForConditionalGeneration",
)
"""Architectures of versions after 1.2 only."""
