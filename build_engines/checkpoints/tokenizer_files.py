"""Converts a checkpoint's tokenizer to the fast `tokenizer.json`."""

from __future__ import annotations

import re
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
_TIKTOKEN_LINE = re.compile(rb"[A-Za-z0-9+/]+=* [0-9]+\r?\n")
_LINE_BYTES = 1 << 10


def read_fast_tokenizer(checkpoint: Path) -> Any:
    """Return the tokenizer of `checkpoint` as transformers' fast one, converted if need be.

    Raises BuildError (`not_a_checkpoint`) if it can't be read or converted.
    """
    path = checkpoint / "tokenizer_config.json"
    settings = read_json(path) if path.is_file() else {}
    named = settings.get("tokenizer_class")
    try:
        tokenizer = _read(checkpoint, settings)
    except Exception as error:
        # Each kind of tokenizer raises other errors for a damaged file; all mean the same to the user.
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200].rstrip(".")
        step = "fetch its files again, or save it as tokenizer.json with transformers"
        if missing := [
            name for name in ("sentencepiece", "tiktoken") if name in str(error) and find_spec(name) is None
        ]:
            step = f"say pip install {missing[0]} and build again"
        elif named and not (checkpoint / "tokenizer.json").is_file():
            step = f"tokenizer_class in {path} is {named}; save it as tokenizer.json with transformers"
        raise BuildError(
            f"The tokenizer of {checkpoint} can't be read ({reason}); {step}.", "not_a_checkpoint"
        ) from error
    if not tokenizer.is_fast:
        raise BuildError(
            f"The tokenizer of {checkpoint} is not a fast one; create a tokenizer.json with transformers first.",
            "not_a_checkpoint",
        )
    return tokenizer


def _read(checkpoint: Path, settings: dict[str, Any]) -> Any:
    """Return the tokenizer, read as the files are.

    The classes of models build normalizer and splitter again, also where tokenizer.json has others; AutoTokenizer reads
    a sentencepiece or tiktoken file without either if the class is not its model's.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import TikTokenConverter
    from transformers.models.auto.tokenization_auto import tokenizer_class_from_name

    if (checkpoint / "tokenizer.json").is_file():
        return PreTrainedTokenizerFast.from_pretrained(checkpoint, local_files_only=True)
    for path in (checkpoint / "tiktoken.model", checkpoint / "tokenizer.model"):
        if path.is_file() and _TIKTOKEN_LINE.match(path.read_bytes()[:_LINE_BYTES]):
            special = settings.get("extra_special_tokens") or []
            rules = TikTokenConverter(str(path), extra_special_tokens=special).converted()
            names = ("bos_token", "eos_token", "pad_token", "unk_token", "chat_template", "model_max_length")
            return PreTrainedTokenizerFast(
                tokenizer_object=rules, **{name: settings[name] for name in names if settings.get(name) is not None}
            )
    named = settings.get("tokenizer_class")
    kind = (isinstance(named, str) and tokenizer_class_from_name(named)) or AutoTokenizer
    return kind.from_pretrained(checkpoint, local_files_only=True)


def write_fast_tokenizer(tokenizer: Any, out: Path) -> None:
    """Write `TOKENIZER_FILES` (the last one only if there is a chat template) and further templates into `out`."""
    tokenizer.save_pretrained(out)
