"""What a call gives back."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Delta:
    """One step of a streamed answer: the text that it adds (often one token's, at times none).

    The last delta, and only that, has a finish reason (`stop`, `length`) and the token counts. Behind an ensemble of
    TensorRT-LLM's own backend, which tells neither, the reason is "" and there are no counts.
    """

    text: str
    finish_reason: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(frozen=True)
class Generation:
    """A whole answer, why it ended, and how many tokens went in and came out."""

    text: str
    finish_reason: str
    input_tokens: int
    output_tokens: int
