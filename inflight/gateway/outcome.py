"""What became of a request."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Outcome:
    """What a request used and how it ended, for the log, the metrics and the spans."""

    admitted: bool = False
    answered: bool = False
    """Whether the answer came to its end, or of a generation at least its first token."""
    task: str = "generate"
    texts: int = 0
    """Texts that were embedded, reranked or classified."""
    input_tokens: int = 0
    output_tokens: int = 0
    streamed: int = 0
    """Steps of the answers so far, of about a token each; `output_tokens` is known at their ends."""
    first_token_at: float | None = None
    finish_reasons: dict[int, str] = field(default_factory=dict)
    error: str = ""
    """The code of the error with which it ended."""
