"""Writes a checkpoint of the Qwen2 family as GGUF with weights of 8 bits: `python llama_cpp_gguf.py CHECKPOINT OUT`.

Needs gguf (PyPI). llama.cpp's own converter refuses tokenizers that it does not know, such as synthetic ones.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gguf
import numpy as np
from safetensors.torch import load_file


def main(checkpoint: Path, out: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    tokenizer = json.loads((checkpoint / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    layers = config["num_hidden_layers"]
    writer = gguf.GGUFWriter(out, "qwen2")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(layers)
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_freq_base((config.get("rope_parameters") or config)["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    tokens = dict(sorted((number, text) for text, number in tokenizer["vocab"].items()))
    writer.add_token_list([tokens.get(number, f"[unused {number}]") for number in range(config["vocab_size"])])
    writer.add_token_merges([each if isinstance(each, str) else " ".join(each) for each in tokenizer["merges"]])
    writer.add_eos_token_id(max(tokens))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, layers)
    for name, tensor in load_file(checkpoint / "model.safetensors").items():
        values = tensor.float().numpy()
        quantized = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0) if values.ndim > 1 else None
        known = names.get_name(name, try_suffixes=(".weight", ".bias")) or name
        writer.add_tensor(
            known,
            values.astype(np.float32) if quantized is None else quantized,
            raw_dtype=None if quantized is None else gguf.GGMLQuantizationType.Q8_0,
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
