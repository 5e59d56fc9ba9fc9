"""Converts a checkpoint's tokenizer to the fast `tokenizer.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from build_engines.errors import BuildError

# The files that serving reads; save_pretrained writes more (slow vocabularies), which an engine does not need.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
FURTHER_TEMPLATES = "additional_chat_templates"
"""Directory of further chat templates by name (`tool_use.jinja`)."""


def read_fast_tokenizer(checkpoint: Path) -> Any:
    """Return the tokenizer of `checkpoint` as transformers' fast one, converted if need be.

    Raises BuildError (`not_a_checkpoint`) if it can't be read or converted.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(checkpoint, use_fast=True, local_files_only=True)
    except Exception as error:
        # Each kind of tokenizer raises other errors for a damaged file; all mean the same to the user.
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200].rstrip(".")
        raise BuildError(
            f"The tokenizer of {checkpoint} can't be read ({reason}); copy its files there again.",
            "not_a_checkpoint",
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
