"""The shapes of models that embed, rerank or classify texts: known ones, and a tiny one for each family and task."""

from __future__ import annotations

from typing import Any

from build_engines.manifest import EncoderTask
from build_engines.synthetic.shapes import CheckpointShape, EncoderFiles, decoder_fields

FAMILIES = ("bert", "roberta", "xlm-roberta", "modernbert", "qwen3")
TASKS: tuple[EncoderTask, ...] = ("embed", "rerank", "classify")

_INSTRUCTION = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"


def _encoder(layers: int, hidden: int, inner: int, heads: int, positions: int, **more: Any) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "max_position_embeddings": positions,
    } | more


def _shape(kind: str, fields: dict[str, Any], vocabulary: int, files: EncoderFiles, dtype: str) -> CheckpointShape:
    """Return a shape with special tokens of the family's ids: RoBERTa's padding is 1, and its positions follow."""
    if kind == "qwen3":
        return CheckpointShape(
            kind, fields, vocabulary, (vocabulary - 1,), None, vocabulary - 2, adds_end=True, dtype=dtype, encoder=files
        )
    start, end, pad = (0, 2, 1) if "roberta" in kind else (2, 3, 0)
    more: dict[str, Any] = {}
    if kind == "modernbert":
        more = {"cls_token_id": start, "sep_token_id": end}
    return CheckpointShape(
        kind, fields | more, vocabulary, (end,), start, pad, adds_start=True, adds_end=True, dtype=dtype, encoder=files
    )


KNOWN_ENCODERS: dict[str, CheckpointShape] = {
    "all-minilm-l6-v2": _shape(
        "bert", _encoder(6, 384, 1536, 12, 512), 30522, EncoderFiles("embed", "mean", 256), "float32"
    ),
    "bge-base-en-v1.5": _shape(
        "bert", _encoder(12, 768, 3072, 12, 512), 30522, EncoderFiles("embed", "cls", 512), "float32"
    ),
    "multilingual-e5-base": _shape(
        "xlm-roberta",
        _encoder(12, 768, 3072, 12, 514, type_vocab_size=1),
        250002,
        EncoderFiles("embed", "mean", 512, {"query": "query: ", "passage": "passage: "}),
        "float32",
    ),
    "modernbert-embed-base": _shape(
        "modernbert",
        _encoder(22, 768, 1152, 12, 8192),
        50368,
        EncoderFiles("embed", "mean", 8192, {"query": "search_query: ", "document": "search_document: "}),
        "float32",
    ),
    "qwen3-embedding-0.6b": _shape(
        "qwen3",
        decoder_fields(28, 1024, 3072, 16, 8, 32768, True, head_dim=128, rope_theta=1e6, rms_norm_eps=1e-6),
        151669,
        EncoderFiles("embed", "lasttoken", 32768, {"query": _INSTRUCTION, "document": ""}),
        "bfloat16",
    ),
    "bge-reranker-v2-m3": _shape(
        "xlm-roberta", _encoder(24, 1024, 4096, 16, 8194, type_vocab_size=1), 250002, EncoderFiles("rerank"), "float32"
    ),
}

_TINY_FIELDS: dict[str, dict[str, Any]] = {
    "bert": _encoder(2, 64, 160, 4, 512),
    "roberta": _encoder(2, 64, 160, 4, 514, type_vocab_size=1),
    "xlm-roberta": _encoder(2, 64, 160, 4, 514, type_vocab_size=1),
    # Four layers, so that one of them after the first sees the whole text and the others only 16 tokens around each.
    "modernbert": _encoder(4, 64, 160, 4, 1024, local_attention=32, global_attn_every_n_layers=3),
    "qwen3": decoder_fields(2, 64, 160, 4, 2, 1024, True, head_dim=32),
}
_TINY_FILES: dict[EncoderTask, EncoderFiles] = {
    "embed": EncoderFiles("embed", "mean", 512, {"query": "query: ", "document": "document: "}),
    "rerank": EncoderFiles("rerank"),
    "classify": EncoderFiles("classify", labels=("negative", "neutral", "positive")),
}


def _tiny(family: str, task: EncoderTask) -> CheckpointShape:
    files = _TINY_FILES[task]
    if family == "qwen3" and task == "embed":
        files = EncoderFiles(task, "lasttoken", 512, {"query": _INSTRUCTION, "document": ""})
    return _shape(family, _TINY_FIELDS[family], 1536, files, "float32")


ENCODERS: dict[str, CheckpointShape] = KNOWN_ENCODERS | {
    f"tiny-{family}-{task}": _tiny(family, task) for family in FAMILIES for task in TASKS
}
