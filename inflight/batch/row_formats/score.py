"""Rows to score: a context with its continuations, or a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from inflight_client import InflightError
from inflight_client.validation import shorten

from inflight.batch.job.rows import RowAnswer, RowRequest, ScoreRequest, Scores, Text
from inflight.batch.row_formats.plain import EncodeRowFormat
from inflight.openai_api.messages import checked_text, checked_token_ids


class ScoreRowFormat(EncodeRowFormat):
    """The context of a row, or its text, is a column or the template's; continuations are a text or a list."""

    def request(self, values: Mapping[str, Any]) -> RowRequest:
        encode, name = self._encode, self._encode.continuations
        source = self._source(values)
        continuations = () if (given := values.get(name)) is None else _continuations(name, given)
        context = _text(*source, empty=bool(continuations))
        if any(isinstance(each, str) != isinstance(context, str) for each in continuations):
            raise InflightError(
                f"{name} must be texts if the context is one, and lists of token ids if it is one", "row_invalid"
            )
        return ScoreRequest(context, continuations, encode.truncate, encode.max_length)

    def answer_values(self, answer: RowAnswer) -> tuple[dict[str, Any], tuple[int, int], int]:
        assert isinstance(answer, Scores)
        scores = answer.scores
        fields: dict[str, Any] = {
            "log_probs": [each.log_prob for each in scores],
            "tokens": [each.tokens for each in scores],
            "bytes": [each.bytes for each in scores],
            "is_greedy": [each.is_greedy for each in scores],
            "input_tokens": answer.total_tokens,
        }
        return fields, (answer.total_tokens, 0), len(scores)


def _continuations(name: str, value: Any) -> tuple[Text, ...]:
    """Parse a text, or a list of texts or of lists of token ids; formats without lists have it as JSON in a text."""
    if isinstance(value, str):
        try:
            parsed = orjson.loads(value)
        except orjson.JSONDecodeError:
            parsed = None
        value = parsed if isinstance(parsed, list) and parsed and isinstance(parsed[0], str | list) else [value]
    if not isinstance(value, list | tuple) or not value:
        raise InflightError(
            f"{name} is {shorten(value)}; it must be a text, or a list with at least one text", "row_invalid"
        )
    return tuple(_text(f"{name}[{place}]", each, empty=False) for place, each in enumerate(value))


def _text(name: str, value: Any, empty: bool) -> Text:
    return checked_token_ids(name, value) if isinstance(value, list) else checked_text(name, value, empty=empty)
