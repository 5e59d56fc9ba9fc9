"""Converts a checkpoint's tokenizer to the fast `tokenizer.json`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from build_engines.checkpoints.checkpoint import read_json
from build_engines.errors import BuildError

# The files that serving reads; save_pretrained writes more (slow vocabularies), which an engine does not need.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


def read_fast_tokenizer(checkpoint: Path) -> Any:
    """Return the tokenizer of `checkpoint` as transformers' fast one, converted if need be.

    Raises BuildError (`not_a_checkpoint`) if it can't be read or converted.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast
    from transformers.models.auto.tokenization_auto import tokenizer_class_from_name

    path = checkpoint / "tokenizer_config.json"
    settings = read_json(path) if path.is_file() else {}
    named = settings.get("tokenizer_class")
    # tokenizer.json is complete, and newer versions of transformers name classes that this one does not have.
    unknown = isinstance(named, str) and tokenizer_class_from_name(named) is None and "auto_map" not in settings
    kind = PreTrainedTokenizerFast if unknown and (checkpoint / "tokenizer.json").is_file() else AutoTokenizer
    try:
        tokenizer = kind.from_pretrained(checkpoint, use_fast=True, local_files_only=True)
    except Exception as error:
        # Each kind of tokenizer raises other errors for a damaged file; all mean the same to the user.
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200].rstrip(".")
        step = "fetch its files again, or save it as tokenizer.json with transformers"
        if missing := [
            name for name in ("sentencepiece", "tiktoken") if name in str(error) and find_spec(name) is None
        ]:
            step = f"say pip install {missing[0]} and build again"
        elif unknown:
            step = f"tokenizer_class in {path} is {named}, which is not known; save it with transformers 5.0"
        raise BuildError(
            f"The tokenizer of {checkpoint} can't be read ({reason}); {step}.", "not_a_checkpoint"
        ) from error
    if not tokenizer.is_fast:
        raise BuildError(
            f"The tokenizer of {checkpoint} is not a fast one; create a tokenizer.json with transformers first.",
            "not_a_checkpoint",
        )
    return tokenizer


def write_fast_tokenizer(tokenizer: Any, out: Path) -> None:
    """Write `TOKENIZER_FILES` (the last one only if there is a chat template) and further templates into `out`."""
    tokenizer.save_pretrained(out)
