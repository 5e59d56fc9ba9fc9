"""What became of a request."""

from __future__ import annotations

from dataclasses import dataclass, field

from inflight_client.results import Delta, Usage


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
    """Texts that were embedded, reranked or classified, and blocks of audio that were transcribed."""
    audio_seconds: float = 0.0
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
    target: str = ""
    """The label of the target to which it was sent, or would have been sent if that were ready."""
    engine: str | None = None
    """The build of what answers there, with its `precision`, as far as they are known."""
    precision: str | None = None
    failed: list[str] = field(default_factory=list)
    """The targets that failed before that one, each with the code of its error."""
    tier: str | None = None
    rung: str = ""
    """What a ladder did to it, as the response's header says it."""
    cache: str | None = None
    """What the response cache did, as the response's header says it."""
    checks: list[str] = field(default_factory=list)
    """What checks did, each as NAME=ACTION."""
    prompt: str | None = None
    """Its prompts, if the audit log has them."""

    def restart(self) -> None:
        """Forget what a target has answered that failed before anything was sent to the client."""
        fresh = Outcome()
        names = ("sent", "answered", "input_tokens", "output_tokens", "streamed", "first_token_at", "finish_reasons")
        for name in (*names, "target", "engine", "precision"):
            setattr(self, name, getattr(fresh, name))


class TokenCounts:
    """The tokens of a request's prompts and answers: as the server reports them, or as the gateway counts them."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._input: dict[int, int] = {}
        self._cached: dict[int, int] = {}
        self._answers: dict[int, int] = {}
        """The tokens of answers so far, if the server tells them."""
        self._complete = True

    def stream(self, answer: int, delta: Delta, stream_interval: int) -> None:
        """Count a piece of an answer; without token ids it has at most `stream_interval` tokens."""
        if delta.token_ids is None:
            self._outcome.streamed += stream_interval
        else:
            self._outcome.streamed += len(delta.token_ids)
            self._answers[answer] = self.of(answer) + len(delta.token_ids)

    def of(self, answer: int) -> int:
        return self._answers.get(answer, 0)

    def report(self, place: int, usage: Usage) -> None:
        """Take what the server reports of an answer to the prompt at this place."""
        self._input[place] = usage.input_tokens
        if usage.cached_tokens is not None:  # the first choice may compute what others share
            self._cached[place] = min(usage.cached_tokens, self._cached.get(place, usage.cached_tokens))
        self._outcome.output_tokens += usage.output_tokens

    def take_counted(self, answer: int, place: int, prompt_tokens: int | None) -> None:
        """Take what was counted of an answer that the server does not report; `prompt_tokens` None: unknown."""
        if prompt_tokens is not None and answer in self._answers:
            self._input[place] = prompt_tokens
            self._outcome.output_tokens += self._answers[answer]
        else:
            self._complete = False

    def usage(self) -> Usage | None:
        """Return the usage of all answers; None if some of it is unknown."""
        self._outcome.input_tokens = sum(self._input.values())
        cached = sum(self._cached.values()) if self._cached else None
        return Usage(self._outcome.input_tokens, self._outcome.output_tokens, cached) if self._complete else None
