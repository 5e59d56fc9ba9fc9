"""What an engine from text to text computes: the tokens of a text in, those of its answer out."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class SourceText:
    """A text as tokens of the model's vocabulary, the tokens with which its answer begins, and how that is decoded:
    arguments of CTranslate2's translate_batch in the order of their names."""

    tokens: tuple[str, ...]
    prefix: tuple[str, ...]
    decoding: tuple[tuple[str, int | float], ...]

    @property
    def size(self) -> int:
        return len(self.tokens)

    @property
    def group(self) -> Hashable:
        """CTranslate2 decodes prefixes of one length only together without padding."""
        return self.decoding, len(self.prefix)


@dataclass(frozen=True)
class TextAnswer:
    """The text that a model made of another, the number of its tokens, and why it ended: `stop` or `length`."""

    text: str = ""
    tokens: int = 0
    finish_reason: str = "stop"


@dataclass(frozen=True)
class Text2TextSettings:
    """An engine's directory, its manifest's `compute_type`, and the threads that compute."""

    engine_dir: str
    compute_type: str
    threads: int
