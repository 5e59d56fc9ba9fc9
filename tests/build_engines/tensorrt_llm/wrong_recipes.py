"""The corpus of wrong recipes, and what is said of each."""

from __future__ import annotations

LLAMA = "LlamaForCausalLM"
UNSUPPORTED = "unsupported_architecture"
# The model unless it is a Llama, the recipe file's text, what is said of it, and the code unless invalid_parameter.
_CASES: list[tuple[str, ...]] = [
    # not a recipe
    ("- dtype\n", "holds a list, and a recipe is a mapping"),
    ("fp8\n", "holds a str, and a recipe is a mapping"),
    ("dtype: [\n", "is not valid YAML"),
    ("dtype: float16\ndtype: bfloat16\n", "the key dtype is given twice"),
    ("limits:\n  max_batch_size: 1\n  max_batch_size: 2\n", "the key max_batch_size is given twice"),
    # no such field
    ("quantisation: fp8\n", "no field quantisation in .*; did you mean quantization"),
    ("max_batch_size: 8\n", "no field max_batch_size in .*; did you mean limits.max_batch_size"),
    ("limits: {max_output_len: 8}\n", "no field limits.max_output_len in .*; did you mean limits.max_"),
    ("tp_size: 2\n", "no field tp_size in .*; its fields are dtype, quantization"),
    ("plugins: {gemm_plugin: auto}\n", "no field plugins.gemm_plugin"),
    ("lora: {lora_dir: /a}\n", "no field lora.lora_dir"),
    ("streamingllm: true\n", "no field streamingllm"),
    # no such value
    ("quantization: fp4\n", "quantization is 'fp4'; it must be one of none, fp8"),
    ("dtype: half\n", "dtype is 'half'; it must be one of auto, float16"),
    ("kv_cache_dtype: int4\n", "kv_cache_dtype is 'int4'; it must be one of auto, fp8 or int8"),
    ("tensor_parallel: two\n", "tensor_parallel is 'two'; it must be a whole number"),
    ("tensor_parallel: 0\n", "tensor_parallel is 0; it must be a number greater than 0"),
    ("tensor_parallel: true\n", "tensor_parallel is True; it must be a whole number"),
    ("limits: {max_num_tokens: 8192.5}\n", "limits.max_num_tokens is 8192.5; it must be a whole number"),
    ("limits: 8\n", "limits is 8; it must be a mapping of fields"),
    ("limits:\n", "limits is None; it must be a mapping of fields"),
    ("paged_context_fmha: maybe\n", "paged_context_fmha is 'maybe'; it must be true or false"),
    ("lora: {target_modules: [q_proj]}\n", "lora.target_modules.0 is 'q_proj'; it must be one of attn_qkv"),
    ("speculation: {mode: ngram, max_draft_len: 4}\n", "speculation.mode is 'ngram'; it must be one of"),
    ("speculation: {mode: lookahead_decoding}\n", "speculation.max_draft_len is missing"),
    ("calibration: {awq_block_size: 100}\n", "calibration.awq_block_size is 100"),
    ("calibration: {seed: -1}\n", "calibration.seed is -1; it must be a number of at least 0"),
    # limits
    ("limits: {max_input_len: 512, max_seq_len: 512}\n", "max_input_len 512 leaves no token for the answer"),
    ("limits: {max_seq_len: 9000}\n", "limits.max_seq_len 9000 is more than the model's 8192 tokens"),
    ("limits: {max_batch_size: 9000}\n", "limits.max_num_tokens 8192 is less than a token for each of 9000"),
    ("limits: {max_beam_width: 64}\n", "256 requests with 64 beams"),
    ("limits: {max_batch_size: 8, max_num_tokens: 16}\n", "is less than plugins.tokens_per_block 32"),
    ("limits: {opt_num_tokens: 9000}\n", "limits.opt_num_tokens 9000 is more than limits.max_num_tokens"),
    ("multiple_profiles: true\nlimits: {opt_num_tokens: 64}\n", "multiple_profiles and limits.opt_num_tokens"),
    ("chunked_context: false\nlimits: {max_input_len: 8191, max_num_tokens: 4096}\n", "Without chunked_context"),
    # features that take one another
    ("paged_context_fmha: false\nkv_cache_reuse: true\n", "kv_cache_reuse needs paged_context_fmha"),
    ("paged_context_fmha: false\nchunked_context: true\n", "chunked_context needs paged_context_fmha"),
    ("paged_context_fmha: true\nplugins: {context_fmha: false}\n", "paged_context_fmha needs plugins.context_fmha"),
    ("paged_context_fmha: true\nkv_cache_dtype: int8\n", "paged_context_fmha does not support kv_cache_dtype int8"),
    (
        "paged_context_fmha: true\nkv_cache_dtype: fp8\n",
        "paged_context_fmha with kv_cache_dtype fp8 needs quantization fp8, w4a8_awq or nvfp4, not none",
    ),
    ("paged_context_fmha: true\ndtype: float32\n", "paged_context_fmha needs dtype float16 or bfloat16, not float32"),
    ("fp8_context_fmha: true\n", "fp8_context_fmha needs quantization fp8, w4a8_awq or nvfp4, not none"),
    (
        "fp8_context_fmha: true\nquantization: fp8\n",
        "With paged_context_fmha, fp8_context_fmha is on if and only if kv_cache_dtype is fp8, but it is auto",
    ),
    (
        "fp8_context_fmha: false\nquantization: nvfp4\nkv_cache_dtype: fp8\n",
        "With paged_context_fmha, fp8_context_fmha is on if and only if kv_cache_dtype is fp8, but it is fp8",
    ),
    (
        "fp8_context_fmha: true\nquantization: fp8\nkv_cache_dtype: fp8\nplugins: {context_fmha: false}\n",
        "fp8_context_fmha needs plugins.context_fmha",
    ),
    ("quantization: int8_wo\ndtype: float32\n", "quantization int8_wo needs dtype float16 or bfloat16, not float32"),
    ("calibration: {quantize_lm_head: true}\n", "calibration.quantize_lm_head needs quantization fp8, not none"),
    # speculation
    (
        "gather_context_logits: true\nspeculation: {mode: lookahead_decoding, max_draft_len: 4}\n",
        "gather_context_logits and speculation exclude each other",
    ),
    (
        "limits: {max_beam_width: 2}\nspeculation: {mode: lookahead_decoding, max_draft_len: 4}\n",
        "speculation needs limits.max_beam_width 1, not 2",
    ),
    (
        "speculation: {mode: medusa, max_draft_len: 63}\n",
        "speculation.mode medusa needs speculation.model, the directory of the draft model",
    ),
    (
        "speculation: {mode: eagle, max_draft_len: 63, model: /nowhere}\n",
        "speculation.model /nowhere has no config.json",
    ),
    (
        "speculation: {mode: draft_tokens_external, max_draft_len: 4, model: /nowhere}\n",
        "compiles no drafting model into the engine",
    ),
    (
        "speculation: {mode: explicit_draft_tokens, max_draft_len: 7, model: MODEL}\n",
        "max_draft_len 7 is no multiple of speculation.beams 5",
    ),
    ("Phi3ForCausalLM", "speculation: {mode: medusa, max_draft_len: 63, model: MODEL}\n", "medusa is for LlamaForCau"),
    (
        "quantization: fp8\nspeculation: {mode: eagle, max_draft_len: 63, model: MODEL}\n",
        "eagle is converted with quantization none, int8_wo, int4_wo",
    ),
    (
        "pipeline_parallel: 2\nspeculation: {mode: eagle, max_draft_len: 63, model: MODEL}\n",
        "eagle can't be split by layers",
    ),
    (
        "speculation: {mode: eagle, max_draft_len: 63, model: MODEL}\nlimits: {max_batch_size: 600}\n",
        "limits.max_batch_size 600 is more than the 512 requests of speculation.mode eagle",
    ),
    (
        "speculation: {mode: eagle, max_draft_len: 300, model: MODEL}\n",
        "speculation.max_draft_len 300 is more than the 256 of eagle",
    ),
    (
        "speculation: {mode: eagle, max_draft_len: 63, model: MODEL}\npaged_context_fmha: false\n",
        "speculation.mode eagle takes paged_context_fmha, which is off",
    ),
    (
        "speculation: {mode: draft_tokens_external, max_draft_len: 4}\npaged_context_fmha: false\n",
        "draft_tokens_external takes paged_context_fmha, which is off",
    ),
    (
        "speculation: {mode: draft_tokens_external, max_draft_len: 4}\nkv_cache_dtype: int8\n",
        "draft_tokens_external takes paged_context_fmha, which is off",
    ),
    # weights that stream
    (
        "weight_streaming: true\nplugins: {gemm: float16}\n",
        "weight_streaming does not support plugins.gemm, which is float16",
    ),
    (
        "weight_streaming: true\nquantization: fp8\nplugins: {low_latency_gemm: fp8}\n",
        "weight_streaming does not support plugins.low_latency_gemm, which is fp8",
    ),
    (
        "weight_streaming: true\nquantization: int4_awq\n",
        "weight_streaming does not support quantization int4_awq, whose weights are in a plugin",
    ),
    # plugins
    ("plugins: {gpt_attention: disable}\n", "In-flight batching needs the attention plugin"),
    ("plugins: {remove_input_padding: false}\n", "In-flight batching needs packed prompts"),
    ("plugins: {gemm: fp8}\n", "plugins.gemm fp8 needs quantization fp8, not none"),
    ("quantization: fp8\nplugins: {gemm: nvfp4}\n", "plugins.gemm nvfp4 needs quantization nvfp4, not fp8"),
    ("plugins: {low_latency_gemm: fp8}\n", "plugins.low_latency_gemm needs quantization fp8, not none"),
    ("plugins: {fuse_fp4_quant: true}\n", "plugins.fuse_fp4_quant needs quantization nvfp4, not none"),
    (
        "quantization: fp8\ntensor_parallel: 2\nplugins: {user_buffer: true}\n",
        "plugins.user_buffer needs plugins.reduce_fusion",
    ),
    (
        "Phi3ForCausalLM",
        "tensor_parallel: 2\nplugins: {reduce_fusion: true}\n",
        "reduce_fusion is for LlamaForCausalLM",
    ),
    ("plugins: {norm_quant_fusion: true}\n", "plugins.norm_quant_fusion needs quantization nvfp4, not none"),
    (
        "quantization: nvfp4\ntensor_parallel: 2\nplugins: {norm_quant_fusion: true, reduce_fusion: true}\n",
        "plugins.norm_quant_fusion and plugins.reduce_fusion exclude each other",
    ),
    (
        "MixtralForCausalLM",
        "quantization: nvfp4\nplugins: {norm_quant_fusion: true}\n",
        "norm_quant_fusion is for LlamaForCausalLM, not MixtralFor",
    ),
    (
        "tensor_parallel: 2\nplugins: {reduce_fusion: true}\n"
        "speculation: {mode: eagle, max_draft_len: 63, model: MODEL}\n",
        "plugins.reduce_fusion is not for speculation.mode eagle",
    ),
    ("plugins: {reduce_fusion: true}\n", "plugins.reduce_fusion needs several GPUs, but tensor_parallel is 1"),
    (
        "quantization: fp8\nplugins: {gemm_swiglu: fp8, use_fused_mlp: false}\n",
        "plugins.gemm_swiglu needs plugins.use_fused_mlp",
    ),
    ("plugins: {pp_reduce_scatter: true}\n", "plugins.pp_reduce_scatter needs a pipeline, but pipeline_parallel is 1"),
    ("pipeline_parallel: 2\nplugins: {pp_reduce_scatter: true}\n", "is for MixtralForCausalLM, not LlamaFor"),
    # adapters
    ("lora: {}\n", "neither lora.directories nor lora.target_modules"),
    ("lora: {directories: [/nowhere]}\n", "lora.directories names /nowhere, which has no adapter_config.json"),
    (
        "dtype: bfloat16\nlora: {target_modules: [attn_qkv], plugin: float16}\n",
        "lora.plugin float16 differs from the engine's dtype bfloat16",
    ),
    # sizes of the model
    ("tensor_parallel: 3\n", "tensor_parallel 3 doesn't divide the model's 32 attention heads"),
    ("tensor_parallel: 2\nworkers: 3\n", "workers 3 is more than the 2 ranks"),
    ("pipeline_parallel: 33\n", "pipeline_parallel 33 is more than the model's 32 layers"),
    (
        "FalconForCausalLM",
        "limits: {max_seq_len: 4096}\n",
        "limits.max_seq_len 4096 is more than the model's 2048 tokens",
    ),
    ("GPT2LMHeadModel", "tensor_parallel: 8\n", "doesn't divide the model's 12 attention heads"),
    # what YAML knows and a recipe doesn't
    ("dtype: 2026-13-01\n", "is invalid: month must be in 1..12"),
    ("dtype: 2026-01-01\n", "is invalid: dtype is 2026-01-01, which is not"),
    ("limits: " + 2000 * "[", "is invalid: it is nested too deeply"),
    ("1: 2\n", "is invalid: 1 is not a text; write the name in quotes"),
    # what the line doesn't build
    ("PhiForCausalLM", "pipeline_parallel: 2\n", "PhiForCausalLM can't be split by layers"),
    ("GPTNeoXForCausalLM", "pipeline_parallel: 2\n", "GPTNeoXForCausalLM can't be split by layers"),
    (
        "GPTJForCausalLM",
        "lora: {target_modules: [attn_qkv]}\n",
        "The engine of a GPTJForCausalLM does not support adapters",
    ),
    (
        "MPTForCausalLM",
        "speculation: {mode: lookahead_decoding, max_draft_len: 15}\n",
        "speculation.mode lookahead_decoding does not support MPTForCausalLM",
    ),
    ("Gemma2ForCausalLM", "pipeline_parallel: 2\n", "Gemma2ForCausalLM can't be split by layers"),
    ("Qwen3ForCausalLM", "quantization: int4_awq\n", "doesn't build Qwen3ForCausalLM with quantization", UNSUPPORTED),
    ("GPTNeoXForCausalLM", "quantization: fp8\n", "doesn't build GPTNeoXForCausalLM with", UNSUPPORTED),
    ("OPTForCausalLM", "kv_cache_dtype: int8\n", "doesn't quantize the KV cache of OPTForCausalLM", UNSUPPORTED),
    ("Gemma3ForCausalLM", "", "runs in PyTorch alone .* build it with --target llmapi", UNSUPPORTED),
    ("GptOssForCausalLM", "", "runs in PyTorch alone .* build it with --target llmapi", UNSUPPORTED),
    ("DeepseekV3ForCausalLM", "", "runs in PyTorch alone .* build it with --target llmapi", UNSUPPORTED),
    ("Llama4ForConditionalGeneration", "", "runs in PyTorch alone .* build it with --target llmapi", UNSUPPORTED),
    ("BrandNewForCausalLM", "", "is not among the architectures .* llmapi doesn't know it either", UNSUPPORTED),
    ("Cohere2ForCausalLM", "", "is not among the architectures .* build it with --target llmapi", UNSUPPORTED),
]
CORPUS = [case if len(case) > 2 else (LLAMA, *case) for case in _CASES]
