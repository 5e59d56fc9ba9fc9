"""`xgrammar_tokenizer_info.json`: a tokenizer's vocabulary as guided decoding in TensorRT-LLM's backend reads it.

It has the format of upstream's examples/generate_xgrammar_tokenizer_info.py (NVIDIA/TensorRT-LLM 7ed07f06), which needs
TensorRT-LLM; all of its content comes from the tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FILE_NAME = "xgrammar_tokenizer_info.json"


def write_xgrammar_tokenizer_info(tokenizer: Any, end_ids: Sequence[int], out: Path) -> None:
    """Write the file into `out`; a guided answer may end with any of `end_ids`.

    `tokenizer` is a fast tokenizer of transformers. Gaps in its ids become empty texts in the list.
    """
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    texts = [""] * (max(vocabulary.values()) + 1)
    for token, token_id in vocabulary.items():
        texts[token_id] = token
    told = {
        "encoded_vocab": texts,
        "tokenizer_str": tokenizer.backend_tokenizer.to_str(),
        "stop_token_ids": list(end_ids),
    }
    (out / FILE_NAME).write_text(json.dumps(told), encoding="utf-8")
