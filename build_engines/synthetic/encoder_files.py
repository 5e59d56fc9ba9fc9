"""Writes the files of sentence-transformers beside a checkpoint with random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from build_engines.synthetic.shapes import EncoderFiles

_TYPE = "sentence_transformers.models."
_MODULES = (("0", "", "Transformer"), ("1", "1_Pooling", "Pooling"), ("2", "2_Normalize", "Normalize"))


def write_encoder_files(files: EncoderFiles, hidden: int, out: Path) -> None:
    """Write modules.json and what it names, for a model that embeds; a cross-encoder or a classifier needs none."""
    if files.task != "embed":
        return
    modules = [
        {"idx": number, "name": name, "path": path, "type": _TYPE + kind}
        for number, (name, path, kind) in enumerate(_MODULES)
    ]
    mode = {"mean": "mean_tokens", "cls": "cls_token", "lasttoken": "lasttoken"}[files.pooling]
    modes = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    pooling = {"word_embedding_dimension": hidden, **{f"pooling_mode_{name}": name == mode for name in modes}}
    prompts = {"prompts": files.prompts, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    _write(out / "modules.json", modules)
    (out / "1_Pooling").mkdir()
    _write(out / "1_Pooling" / "config.json", pooling | {"include_prompt": True})
    _write(out / "sentence_bert_config.json", {"max_seq_length": files.max_seq_length, "do_lower_case": False})
    _write(out / "config_sentence_transformers.json", prompts)


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
