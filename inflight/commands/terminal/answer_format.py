"""An answer as `generate` and `chat` report it: a line for people, an object for scripts."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from inflight_client import Delta, Generation

_MIN_RATE_SECONDS = 0.05
"""Seconds of streaming that a rate says something of: tokens that came together have none."""


def summary_line(answer: Generation) -> str:
    """How long it took and why it ended, for the end of a streamed answer.

    The rate is that of the tokens after the first one, which waits for the queue and the prompt.
    """
    times = answer.timings
    tokens = answer.output_tokens
    if tokens is None:  # a deployment that counts none
        return f"[{times.total:.2f} s, the first text after {times.first_token:.2f} s, ended by {answer.finish_reason}]"
    after = times.total - times.first_token
    rate = f", then {(tokens - 1) / after:.1f} tokens/s" if tokens > 1 and after >= _MIN_RATE_SECONDS else ""
    return (
        f"[{tokens} tokens in {times.total:.2f} s: the first after {times.first_token:.2f} s{rate};"
        f" ended by {answer.finish_reason}]"
    )


def delta_line(delta: Delta) -> str:
    """A step of an answer as one line of JSON: its text, and what else was asked for of its tokens."""
    return _line({"text": delta.text, "token_ids": delta.token_ids, "log_probs": delta.log_probs})


def final_line(answer: Generation) -> str:
    """What is known at the end of an answer that came in steps, as one line of JSON without the text."""
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
    """A whole answer as one line of JSON."""
    return _line(dataclasses.asdict(answer))


def _line(values: dict[str, Any]) -> str:
    """What there is of the values: nothing stands for what the deployment doesn't tell."""
    told = {name: _without_none(value) for name, value in values.items() if value is not None}
    return json.dumps(told, ensure_ascii=False)


def _without_none(value: Any) -> Any:
    return {name: one for name, one in value.items() if one is not None} if isinstance(value, dict) else value
