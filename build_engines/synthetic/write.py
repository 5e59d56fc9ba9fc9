"""Writes a complete checkpoint with random weights."""

from __future__ import annotations

from pathlib import Path

from build_engines.errors import BuildError
from build_engines.progress import BuildProgress, NoBuildProgress
from build_engines.synthetic.shapes import SHAPES

SHARD_BYTES = 2 << 30


def write_synthetic_checkpoint(
    name: str,
    out: Path,
    *,
    seed: int = 0,
    shard_bytes: int = SHARD_BYTES,
    progress: BuildProgress | None = None,
) -> None:
    """Write a checkpoint of the shape `name` (a key of `SHAPES`) with random weights into the directory `out`.

    The same name and seed give the same files. Each weight file has at most `shard_bytes`. Raises BuildError as
    `check_name` does.
    """
    check_name(name)
    progress = progress or NoBuildProgress()
    progress.step("Writing tokenizer and config")
    import torch
    from transformers import AutoConfig, GenerationConfig

    from build_engines.synthetic.tokenizer import write_tokenizer
    from build_engines.synthetic.weights import write_weights

    shape = SHAPES[name]
    end = shape.end_ids[0] if len(shape.end_ids) == 1 else list(shape.end_ids)
    ids = {"bos_token_id": shape.start_id, "eos_token_id": end, "pad_token_id": shape.pad_id}
    config = AutoConfig.for_model(
        shape.model_type,
        vocab_size=shape.vocab_size,
        dtype=getattr(torch, shape.dtype),
        **ids,
        **shape.fields,
    )
    config.architectures = [_causal_class(config)]
    config.save_pretrained(out)
    GenerationConfig(**ids).save_pretrained(out)
    write_tokenizer(shape, out)
    progress.step("Writing random weights")
    write_weights(config, out, seed=seed, shard_bytes=shard_bytes, report=progress.advance)


def check_name(name: str) -> None:
    """Raise BuildError (`unsupported_architecture`) unless `name` is a known shape; needs no heavy import."""
    if name not in SHAPES:
        raise BuildError(f"There is no shape {name!r}; choose one of {', '.join(SHAPES)}.", "unsupported_architecture")


def _causal_class(config: object) -> str:
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    return str(MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].__name__)
