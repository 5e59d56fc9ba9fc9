"""The shapes of tiny models with an encoder and a decoder, and the files of Whisper that others don't have."""

from __future__ import annotations

from typing import Any

from build_engines.synthetic.shapes import CheckpointShape

_WORDS = 500
WHISPER_TOKENS = (
    *("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|zh|>", "<|translate|>", "<|transcribe|>"),
    *("<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"),
)
"""The special tokens after the words, in Whisper's order; times follow them."""
_TIMES = 1501
_LANGUAGES = WHISPER_TOKENS[2:5]
_IDS = {token: _WORDS + number for number, token in enumerate(WHISPER_TOKENS)}
_SIZE = 1536


def _fields(**more: Any) -> dict[str, Any]:
    sides = {
        f"{side}_{name}": size
        for side in ("encoder", "decoder")
        for name, size in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 160))
    }
    return {"d_model": 64, "max_position_embeddings": 256} | sides | more


def _text(kind: str, end: int, start: int | None, pad: int, first: int, fields: dict[str, Any]) -> CheckpointShape:
    fields = fields | {"decoder_start_token_id": first}
    adds_start = kind == "bart"
    return CheckpointShape(kind, fields, _SIZE, (end,), start, pad, adds_start, adds_end=True, dtype="float32")


SEQ2SEQ: dict[str, CheckpointShape] = {
    "tiny-whisper": CheckpointShape(
        "whisper",
        _fields(
            num_mel_bins=80,
            max_source_positions=1500,
            max_target_positions=448,
            decoder_start_token_id=_IDS["<|startoftranscript|>"],
        ),
        _WORDS + len(WHISPER_TOKENS) + _TIMES,
        (_WORDS,),
        _WORDS,
        _WORDS,
        dtype="float32",
    ),
    "tiny-t5": _text(
        "t5",
        1,
        None,
        0,
        0,
        {"d_model": 64, "d_kv": 16, "d_ff": 160, "num_layers": 2, "num_heads": 4, "n_positions": 512},
    ),
    "tiny-bart": _text("bart", 2, 0, 1, 2, _fields()),
    # The padding is the last token, whose embedding is zero; answers begin with it.
    "tiny-marian": _text(
        "marian", 0, None, _SIZE - 1, _SIZE - 1, _fields(scale_embedding=True, activation_function="swish")
    ),
}


def generation_settings(shape: CheckpointShape) -> dict[str, Any]:
    """Return what generation_config.json says beside the ids of the special tokens."""
    settings: dict[str, Any] = {"decoder_start_token_id": shape.fields["decoder_start_token_id"]}
    if shape.model_type == "bart":
        settings |= {"forced_bos_token_id": shape.start_id, "num_beams": 4, "no_repeat_ngram_size": 3}
    if shape.model_type == "marian":
        settings["bad_words_ids"] = [[shape.pad_id]]
    if shape.model_type == "whisper":
        settings |= {
            "begin_suppress_tokens": [shape.end_ids[0]],
            "is_multilingual": True,
            "lang_to_id": {token: _IDS[token] for token in _LANGUAGES},
            "no_timestamps_token_id": _IDS["<|notimestamps|>"],
            "suppress_tokens": [_IDS["<|startoflm|>"]],
            "task_to_id": {task: _IDS[f"<|{task}|>"] for task in ("transcribe", "translate")},
        }
    return settings


WHISPER_FEATURES = {
    "chunk_length": 30,
    "feature_extractor_type": "WhisperFeatureExtractor",
    "feature_size": 80,
    "hop_length": 160,
    "n_fft": 400,
    "sampling_rate": 16000,
}
"""The content of preprocessor_config.json."""
