"""Reads what the manifest says of a model from its variables, its vocabulary and its tokenizer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from build_engines.checkpoints.checkpoint import read_json
from build_engines.checkpoints.ctranslate2_model import CTranslate2Facts
from build_engines.ctranslate2.convert import TOKENIZER, Converted, decoding_settings
from build_engines.ctranslate2.tokenizer import END
from build_engines.errors import BuildError, damaged, invalid
from build_engines.manifest import Seq2SeqText

START = "<|startoftranscript|>"
_AFTER_LANGUAGES = "<|translate|>"
_ENGLISH_TOKENS = 51864
"""The vocabulary of models for English only; others have a token more, which is how the library tells them apart."""
RELATIVE_POSITIONS = 512
"""Tokens of a text for models with relative positions whose config names no limit."""
POSITIONS = "position_encodings/encodings"
_LANGUAGE_TOKENS = (
    ("__{}__", re.compile(r"__([a-z]{2,3})__")),  # M2M100
    (">>{}<<", re.compile(r">>([A-Za-z_]{2,12})<<")),  # Marian
    ("{}", re.compile(r"([a-z]{3}_[A-Z][a-z]{3})")),  # NLLB
    ("{}", re.compile(r"([a-z]{2}_[A-Z]{2})")),  # mBART
)
_FEWEST = 2
"""Tokens of languages in a vocabulary that has them, since a text may have one that looks like them."""


class Languages(NamedTuple):
    """The codes of a model's languages, and the token of one, with {} for its code."""

    codes: tuple[str, ...]
    token: str


def find_languages(tokens: Sequence[str]) -> Languages:
    """Return the languages of which a vocabulary has tokens."""
    for token, pattern in _LANGUAGE_TOKENS:
        codes = tuple(found[1] for each in tokens if (found := pattern.fullmatch(each)))
        if len(codes) >= _FEWEST:
            return Languages(codes, token)
    return Languages((), "")


def describe_speech(facts: CTranslate2Facts, tokens: Sequence[str]) -> dict[str, Any]:
    """Return the fields of `CompiledSeq2Seq` that a model for speech decides. Raises BuildError (`checkpoint_damaged`)
    for a vocabulary that is not Whisper's."""
    _check_vocabulary(facts, tokens, (START, END))
    languages: Sequence[str] = ()
    if len(tokens) > _ENGLISH_TOKENS and _AFTER_LANGUAGES in tokens:
        languages = tokens[tokens.index(START) + 1 : tokens.index(_AFTER_LANGUAGES)]
    return {
        "task": "transcribe",
        "max_seq_len": facts.size(f"decoder/{POSITIONS}", 0),
        "max_source_len": facts.size(f"encoder/{POSITIONS}", 0),
        "mels": facts.size("encoder/conv1/weight", 1),
        "pad_id": tokens.index(END),
        "languages": tuple(token[2:-2] for token in languages),
    }


def describe_text(
    out: Path,
    facts: CTranslate2Facts,
    tokens: Sequence[str],
    config: Mapping[str, Any],
    converted: Converted | None,
    limit: int | None,
) -> dict[str, Any]:
    """Return the fields of `CompiledSeq2Seq` that a model for text decides: `config` is the checkpoint's, and `limit`
    the user's number of tokens of a text and of an answer. `converted` is None of a model that was in CTranslate2's
    format.

    Raises BuildError: `checkpoint_damaged` for files that can't be read or don't fit together, `not_a_checkpoint`
    without a tokenizer, and `invalid_parameter` for a limit above the model's.
    """
    end = read_json(out / "config.json").get("eos_token", "</s>")
    _check_vocabulary(facts, tokens, (end,))
    # T5 has relative positions, and was trained up to a length that its config names.
    named = config.get("n_positions")
    relative = named if isinstance(named, int) else RELATIVE_POSITIONS
    lengths = {}
    for part, name in (("encoder", "max_source_len"), ("decoder", "max_seq_len")):
        fixed = f"{part}/{POSITIONS}" in facts.variables
        longest = facts.size(f"{part}/{POSITIONS}", 0) if fixed else relative
        if fixed and limit is not None and limit > longest:
            raise invalid(f"The model reads {longest} tokens at most, so --max-seq-len {limit} is too high; lower it.")
        lengths[name] = limit or longest
    languages = find_languages(tokens)
    return {
        "task": "text2text",
        **lengths,
        "pad_id": tokens.index(end),
        "languages": languages.codes,
        "text": read_text(out, languages, config, converted),
    }


def read_text(out: Path, languages: Languages, config: Mapping[str, Any], converted: Converted | None) -> Seq2SeqText:
    """Return how the engine in `out` reads and writes; `config` is the checkpoint's, `converted` is None of a model
    that was in CTranslate2's format.

    Raises BuildError: `not_a_checkpoint` without a tokenizer, and `checkpoint_damaged` for one that can't be read.
    """
    before, after = _around(out)
    if config.get("add_source_bos"):
        before = before or (str(config.get("bos_token", "<s>")),)
    if config.get("add_source_eos"):
        after = after or (str(config.get("eos_token", "</s>")),)
    prompts = config.get("task_specific_params")
    sources = (code for code in languages.codes if languages.token.format(code) in (*before, *after))
    named = {
        name: settings
        for name, settings in (prompts if isinstance(prompts, dict) else {}).items()
        if isinstance(settings, dict) and isinstance(settings.get("prefix"), str) and settings["prefix"].strip()
    }
    return Seq2SeqText(
        before=before,
        after=after,
        prefix=tuple(converted.prefix) if converted else (),
        language_token=languages.token,
        source_language=next(sources, None),
        target_language_in="before" if languages.token == ">>{}<<" else "prefix",
        prompts={name: settings["prefix"] for name, settings in named.items()},
        prompt_defaults={name: decoding_settings(settings) for name, settings in named.items()},
        defaults=converted.defaults if converted else {},
    )


def _around(out: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the tokens that the tokenizer puts before and after each text."""
    from tokenizers import Tokenizer

    path = out / TOKENIZER
    if not path.is_file():
        raise BuildError(
            f"The model has no {TOKENIZER}; copy that of the original model into its directory.", "not_a_checkpoint"
        )
    try:
        encoded = Tokenizer.from_file(str(path)).encode("a")
    except Exception as error:  # the library raises no narrower one
        raise damaged(f"{TOKENIZER} can't be read ({error}); fetch it again.") from error
    special = list(zip(encoded.tokens, encoded.special_tokens_mask, strict=True))
    before = tuple(token for token, mask in takewhile(lambda each: each[1], special))
    after = tuple(token for token, mask in takewhile(lambda each: each[1], reversed(special)))
    return before, after[::-1]


def _check_vocabulary(facts: CTranslate2Facts, tokens: Sequence[str], special: Sequence[str]) -> None:
    size = facts.size("decoder/embeddings/weight", 0)
    if len(tokens) != size or not set(special) <= set(tokens):
        raise damaged(
            f"The vocabulary of {facts.path} has {len(tokens):,} tokens and the model {size:,}, or it has no"
            f" {' or '.join(special)}; fetch or convert both again."
        )
