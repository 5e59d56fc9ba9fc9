"""Writes a complete checkpoint with random weights."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

from build_engines.checkpoints.ctranslate2_model import SEQ2SEQ_TASKS
from build_engines.errors import unsupported
from build_engines.progress import BuildProgress, NoBuildProgress
from build_engines.synthetic.encoder_shapes import ENCODERS
from build_engines.synthetic.seq2seq_shapes import SEQ2SEQ, WHISPER_FEATURES, generation_settings
from build_engines.synthetic.shapes import SHAPES, CheckpointShape, EncoderFiles

ALL_SHAPES: dict[str, CheckpointShape] = SHAPES | ENCODERS | SEQ2SEQ

SHARD_BYTES = 2 << 30
_MODULE_TYPE = "sentence_transformers.models."
_MODULES = (("0", "", "Transformer"), ("1", "1_Pooling", "Pooling"), ("2", "2_Normalize", "Normalize"))


def write_synthetic_checkpoint(
    name: str,
    out: Path,
    *,
    seed: int = 0,
    shard_bytes: int = SHARD_BYTES,
    progress: BuildProgress | None = None,
) -> None:
    """Write a checkpoint of the shape `name` (a key of `ALL_SHAPES`) with random weights into the directory `out`.

    The same name and seed give the same files. Each weight file has at most `shard_bytes`. Raises BuildError
    (`unsupported_architecture`) for an unknown name.
    """
    if name not in ALL_SHAPES:
        raise unsupported(f"There is no shape {name!r}; choose one of {', '.join(ALL_SHAPES)}.")
    progress = progress or NoBuildProgress()
    progress.step("Writing tokenizer and config")
    import torch
    from transformers import AutoConfig, GenerationConfig

    from build_engines.synthetic.tokenizer import write_tokenizer
    from build_engines.synthetic.weights import write_weights

    shape = ALL_SHAPES[name]
    end = shape.end_ids[0] if len(shape.end_ids) == 1 else list(shape.end_ids)
    labels = shape.encoder.labels if shape.encoder and shape.encoder.task != "embed" else ()
    ids = {"bos_token_id": shape.start_id, "eos_token_id": end, "pad_token_id": shape.pad_id}
    config = AutoConfig.for_model(
        shape.model_type,
        vocab_size=shape.vocab_size,
        dtype=getattr(torch, shape.dtype),
        **ids,
        **(
            {"id2label": dict(enumerate(labels)), "label2id": dict(zip(labels, count(), strict=False))}
            if labels
            else {}
        ),
        **shape.fields,
    )
    kind = _model_class(config, shape)
    # Qwen3-Embedding names the class that generates, and stores the weights of the base model.
    config.architectures = ["Qwen3ForCausalLM" if shape.model_type == "qwen3" and not labels else kind.__name__]
    config.save_pretrained(out)
    if shape.encoder is None:
        more = generation_settings(shape) if shape.model_type in SEQ2SEQ_TASKS else {}
        GenerationConfig(**ids, **more).save_pretrained(out)
        if shape.model_type == "whisper":
            _write_json(out / "preprocessor_config.json", WHISPER_FEATURES)
    else:
        _write_encoder_files(shape.encoder, config.hidden_size, out)
    write_tokenizer(shape, out)
    progress.step("Writing random weights")
    write_weights(config, kind, out, seed=seed, shard_bytes=shard_bytes, report=progress.advance)


def _model_class(config: object, shape: CheckpointShape) -> Any:
    from transformers import (
        MODEL_FOR_CAUSAL_LM_MAPPING,
        MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
        MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
        MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING,
        MODEL_MAPPING,
    )

    task = SEQ2SEQ_TASKS.get(shape.model_type, "generate") if shape.encoder is None else shape.encoder.task
    classes = {
        "generate": MODEL_FOR_CAUSAL_LM_MAPPING,
        "embed": MODEL_MAPPING,
        "text2text": MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
        "transcribe": MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING,
    }
    return classes.get(task, MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING)[type(config)]


def _write_encoder_files(files: EncoderFiles, hidden: int, out: Path) -> None:
    """Write modules.json and what it names, for a model that embeds; a cross-encoder or a classifier needs none."""
    if files.task != "embed":
        return
    modules = [
        {"idx": number, "name": name, "path": path, "type": _MODULE_TYPE + kind}
        for number, (name, path, kind) in enumerate(_MODULES)
    ]
    mode = {"mean": "mean_tokens", "cls": "cls_token", "lasttoken": "lasttoken"}[files.pooling]
    modes = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    pooling = {"word_embedding_dimension": hidden, **{f"pooling_mode_{name}": name == mode for name in modes}}
    prompts = {"prompts": files.prompts, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    _write_json(out / "modules.json", modules)
    (out / "1_Pooling").mkdir()
    _write_json(out / "1_Pooling" / "config.json", pooling | {"include_prompt": True})
    _write_json(out / "sentence_bert_config.json", {"max_seq_length": files.max_seq_length, "do_lower_case": False})
    _write_json(out / "config_sentence_transformers.json", prompts)


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
