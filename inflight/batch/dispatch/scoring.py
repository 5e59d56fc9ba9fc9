"""Scores the texts of a row by the log probabilities of their tokens, which a server reports of prompts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

from inflight_client import InflightError

from inflight.batch.job.rows import Score, ScoreRequest, Scores, Text


class PromptToken(NamedTuple):
    """The natural logarithm of the probability of a prompt's token, and whether it is the likeliest one there."""

    log_prob: float
    is_greedy: bool


class PromptScorer(Protocol):
    """A server that reports the log probabilities of a prompt's tokens. All methods raise only InflightError."""

    async def tokenize(self, text: str) -> Sequence[int]:
        """Return the token ids of a text, as those of a prompt."""

    async def max_prompt_tokens(self) -> int | None:
        """Return the most tokens of a prompt; None if the server does not say."""

    async def score_prompt(self, ids: Sequence[int]) -> Sequence[PromptToken]:
        """Return the log probability of each token after those before it; that of the first means nothing."""


@dataclass(frozen=True)
class _Span:
    """Token ids, of which those from `begin` on are scored."""

    ids: Sequence[int]
    begin: int


async def score(request: ScoreRequest, server: PromptScorer) -> Scores:
    """Return the scores of a row's continuations, or of its text. Raises InflightError, also for a text that has no
    tokens to score.

    The tokens of a continuation are those of the context and the continuation together, less as many as the context
    has alone, and white space at the end of the context belongs to the continuation: the rule of the
    lm-evaluation-harness. The first token of a text has nothing before it and is not scored. A text that is too long
    is scored in windows, each of which begins with the last token of the one before.
    """
    limits = [each for each in (request.max_length, await server.max_prompt_tokens()) if each is not None]
    most = min(limits) if limits else None
    if request.continuations:
        parts = [[_fitted(each, request, most)] for each in await _continued(request, server)]
    else:
        parts = [_windows(await _ids(request.context, server), most)]
    texts = request.continuations or (request.context,)
    scores = tuple([await _score(part, text, server) for part, text in zip(parts, texts, strict=True)])
    return Scores(scores, sum(len(span.ids) for part in parts for span in part))


async def _ids(text: Text, server: PromptScorer) -> Sequence[int]:
    return await server.tokenize(text) if isinstance(text, str) else text


async def _continued(request: ScoreRequest, server: PromptScorer) -> list[_Span]:
    """Return the tokens of the context with each continuation."""
    context = request.context
    if not isinstance(context, str):
        return [_Span((*context, *each), len(context)) for each in request.continuations]
    bare = context.rstrip()
    before = await server.tokenize(bare)
    spans = []
    for continuation in request.continuations:
        whole = await server.tokenize(f"{context}{continuation}")
        if not bare and list(whole[: len(before)]) != list(before):  # what begins a text that is not empty is implied
            whole = (*before, *whole)
        spans.append(_Span(whole, len(before)))
    return spans


def _fitted(span: _Span, request: ScoreRequest, most: int | None) -> _Span:
    """Return a continuation with as much of its context as fits. Raises InflightError."""
    count = len(span.ids)
    if span.begin >= count:
        raise InflightError("a continuation adds no token to its context; send one with more text", "empty_prompt")
    if most is not None and count > most:
        if not request.truncate or count - span.begin >= most:
            remedy = "shorten the continuation" if request.truncate else "shorten the context, or pass --truncate"
            raise InflightError(
                f"the context and a continuation have {count} tokens, and the server scores at most {most}; {remedy}",
                "prompt_too_long",
            )
        span = _Span(span.ids[count - most :], span.begin - (count - most))
    if not span.begin:
        raise InflightError("a continuation has nothing before it; send a context of one token or more", "empty_prompt")
    return span


def _windows(ids: Sequence[int], most: int | None) -> list[_Span]:
    """Return the windows of a text; each token but the first is scored in one of them."""
    if len(ids) < 2:
        raise InflightError("the text has one token, and the first is not scored; send a longer text", "empty_prompt")
    most = len(ids) if most is None else most
    ends = [*range(0, len(ids) - 1, max(1, most - 1)), len(ids) - 1]
    return [_Span(ids[begin : end + 1], 1) for begin, end in pairwise(ends)]


async def _score(spans: Sequence[_Span], text: Text, server: PromptScorer) -> Score:
    tokens: list[PromptToken] = []
    for span in spans:
        scored = await server.score_prompt(span.ids)
        if len(scored) != len(span.ids):
            raise InflightError(
                f"the server reports {len(scored)} log probabilities of {len(span.ids)} tokens; send the row again",
                "answer_damaged",
            )
        tokens += scored[span.begin :]
    log_prob = math.fsum(each.log_prob for each in tokens)
    if not math.isfinite(log_prob):
        raise InflightError(
            "the log probability of a token is not a finite number; build the engine again, in another precision",
            "text_not_computed",
        )
    size = len(text.encode()) if isinstance(text, str) else None
    return Score(log_prob, len(tokens), size, all(each.is_greedy for each in tokens))


async def check_scores(server: PromptScorer, name: str) -> None:
    """Raise InflightError `unsupported_deployment`, for a job to end before its first row, if a server can't score."""
    try:
        scored = await server.score_prompt((0, 0))
    except InflightError as error:
        if error.code != "unsupported_input":
            raise
        raise InflightError(f"{name} can't score: {error}", "unsupported_deployment") from None
    if len(scored) != 2:
        raise InflightError(
            f"{name} reports no log probabilities of prompts; name a server that does, such as one of inflight serve",
            "unsupported_deployment",
        )
