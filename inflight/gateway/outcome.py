"""What became of a request."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Outcome:
    """What a request used and how it ended, for the log, the metrics and the spans."""

    admitted: bool = False
    sent: bool = False
    """Whether it was sent to a server, which may compute its prompt even if the client leaves."""
    prompt_tokens: int = 0
    """The tokens of its prompts, where the gateway has counted them."""
    answered: bool = False
    """Whether the answer came to its end, or of a generation at least its first token."""
    task: str = "generate"
    texts: int = 0
    """Texts that were embedded, reranked or classified."""
    input_tokens: int = 0
    output_tokens: int = 0
    streamed: int = 0
    """The most tokens that the answers have so far; `output_tokens` is known at their ends."""
    first_token_at: float | None = None
    finish_reasons: dict[int, str] = field(default_factory=dict)
    left: bool = False
    """Whether the client left before the response's end."""
    model: str = ""
    param: str | None = None
    error: str = ""
    """The code of the error with which it ended."""
