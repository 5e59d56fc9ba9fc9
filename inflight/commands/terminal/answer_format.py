"""An answer as `generate` and `chat` print it: a line for people, a JSON object for scripts."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from inflight_client import Delta, Generation, LogProb

_MIN_RATE_SECONDS = 0.05
"""Shortest streaming time for which a rate is shown; tokens that arrive together have no rate."""


def summary_line(answer: Generation) -> str:
    """Return a line with the time that the answer took and why it ended.

    The rate is of the tokens after the first one, which waits for the queue and the prompt.
    """
    times = answer.timings
    tokens = answer.output_tokens
    if tokens is None:  # this deployment does not count tokens
        return f"[{times.total:.2f} s, first text after {times.first_token:.2f} s, ended by {answer.finish_reason}]"
    after = times.total - times.first_token
    rate = f", then {(tokens - 1) / after:.1f} tokens/s" if tokens > 1 and after >= _MIN_RATE_SECONDS else ""
    return (
        f"[{tokens} tokens in {times.total:.2f} s: first after {times.first_token:.2f} s{rate};"
        f" ended by {answer.finish_reason}]"
    )


def delta_line(delta: Delta) -> str:
    """Return one step of an answer as a line of JSON: its text, and the token data that was requested."""
    token_data = {"token_ids": delta.token_ids, "log_probs": delta.log_probs, "top_log_probs": _tops(delta)}
    return _line({"text": delta.text, **token_data})


def final_line(answer: Generation) -> str:
    """Return the end of a streamed answer as a line of JSON, without the text."""
    return _line(
        {
            "finish_reason": answer.finish_reason,
            "usage": None if answer.usage is None else dataclasses.asdict(answer.usage),
            "timings": dataclasses.asdict(answer.timings),
            "request_id": answer.request_id,
            "cumulative_log_prob": answer.cumulative_log_prob,
        }
    )


def answer_line(answer: Generation) -> str:
    """Return a whole answer as one line of JSON."""
    return _line({**dataclasses.asdict(answer), "top_log_probs": _tops(answer)})


def _tops(answer: Delta | Generation) -> list[Any] | None:
    """Return the likeliest tokens at each place of an answer, if they were asked for."""
    tops = [each.top for each in answer.log_probs or () if isinstance(each, LogProb)]
    return tops or None


def _line(values: dict[str, Any]) -> str:
    """Return the values as JSON, without those that the deployment does not report."""
    reported = {name: _without_none(value) for name, value in values.items() if value is not None}
    return json.dumps(reported, ensure_ascii=False)


def _without_none(value: Any) -> Any:
    return {name: inner for name, inner in value.items() if inner is not None} if isinstance(value, dict) else value
