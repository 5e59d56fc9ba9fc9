"""Reads the vocabulary of a Whisper model, and makes a tokenizer.json of it where there is none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from build_engines.checkpoints.checkpoint import read_json
from build_engines.checkpoints.ctranslate2_model import VOCABULARIES, damaged_model
from build_engines.errors import BuildError

END = "<|endoftext|>"
"""The first special token: the ones before it are bytes and merges."""


def read_vocabulary(directory: Path) -> list[str]:
    """Return the tokens of the model in `directory` in the order of their ids.

    Raises BuildError: `not_a_checkpoint` without a vocabulary, `checkpoint_damaged` for one that can't be read.
    """
    for path in (directory / name for name in VOCABULARIES):
        if path.is_file() and path.suffix == ".json":
            tokens = read_json(path, list)
            if not all(isinstance(token, str) for token in tokens):
                raise damaged_model(path, "a token is not a text")
            return tokens
        if path.is_file():
            try:
                return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
            except UnicodeDecodeError as error:
                raise damaged_model(path, "it is not UTF-8") from error
    raise BuildError(
        f"{directory} has none of {', '.join(VOCABULARIES)}; copy the one of the converted model there.",
        "not_a_checkpoint",
    )


def write_tokenizer(tokens: Sequence[str], path: Path) -> None:
    """Write a byte-level tokenizer with these tokens, in the order of their ids.

    Raises BuildError (`not_a_checkpoint`) for a vocabulary that is not Whisper's.
    """
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.decoders import ByteLevel as ByteLevelDecoder
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel

    end = tokens.index(END) if END in tokens else 0
    words = tokens[:end]
    if sum(len(word) == 1 for word in words) != 256:
        raise BuildError(
            f"The vocabulary of {path.parent} is not Whisper's; copy the tokenizer.json of the original model there.",
            "not_a_checkpoint",
        )
    model = BPE(vocab={word: number for number, word in enumerate(words)}, merges=list(_merges(words)))
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in tokens[end:]])
    tokenizer.save(str(path))


def _merges(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the pair that makes each word: the two parts that all earlier merges leave of it.

    A word's id is the place of its merge, so the earlier words are the earlier merges.
    """
    ranks = {word: rank for rank, word in enumerate(words)}
    for rank, word in enumerate(words):
        parts = list(word)
        while len(parts) > 2:
            found, place = min((ranks.get(left + right, rank), at) for at, (left, right) in enumerate(pairwise(parts)))
            if found >= rank:
                break
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
        if len(parts) == 2:
            yield parts[0], parts[1]
