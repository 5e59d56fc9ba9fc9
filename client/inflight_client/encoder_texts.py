"""The texts of a call of an encoder: split into requests of bounded size, and their results joined."""

from __future__ import annotations

import math
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Any

from inflight_client.encoder_call import EncoderOptions, EncoderRequest, Item, Task
from inflight_client.encodings import (
    Classification,
    Classifications,
    Embeddings,
    RankedDocument,
    Reranking,
    Translations,
)
from inflight_client.errors import InflightError
from inflight_client.validation import check_utf8, invalid_value, is_int, shorten

Text = str | Iterable[int]
"""A text, or its token ids."""
Texts = str | Iterable[Text]
AsyncTexts = str | Iterable[Text] | AsyncIterable[Text]
Documents = str | Iterable[str]
AsyncDocuments = str | Iterable[str] | AsyncIterable[str]

MAX_TEXTS: Mapping[Task, int] = {"embed": 256, "rerank": 1024, "classify": 256, "text2text": 256}
"""Maximum texts of a request, as the models limit it."""
MAX_CHARACTERS = 4 * 16_384
"""Maximum characters of a request of several texts, about 16,384 tokens, padding included: messages stay small."""
CONCURRENCY = 4
"""Requests of one call in flight: texts for the server to group by length, and room for other callers' requests."""

_MAX_ID = 2**31 - 1


class Splitter:
    """Splits a caller's texts into requests; texts and token ids never share one. With `return_errors` it keeps the
    errors of texts that can't be sent, otherwise it raises them."""

    def __init__(self, options: EncoderOptions) -> None:
        self.count = 0
        """Texts so far."""
        self.errors: dict[int, InflightError] = {}
        self._options = options
        self._items: dict[bool, list[Item]] = {True: [], False: []}
        """The items of the next request: of texts, and of token ids."""
        self._sizes = {True: 0, False: 0}

    def requests(self, texts: Iterable[Text]) -> Iterator[EncoderRequest]:
        for text in texts:
            yield from self._add(text)
        yield from self._rest()

    async def async_requests(self, texts: AsyncIterable[Text]) -> AsyncIterator[EncoderRequest]:
        async for text in texts:
            for request in self._add(text):
                yield request
        for request in self._rest():
            yield request

    def _add(self, text: Text) -> Iterator[EncoderRequest]:
        """Add a text; yield the request that has no room for it."""
        index, self.count = self.count, self.count + 1
        try:
            item = Item(index, _checked_text(f"{self._options.texts_name}[{index}]", text, self._options.task))
        except InflightError as error:
            if not self._options.return_errors:
                raise
            self.errors[index] = error
            return
        kind = isinstance(item.text, str)
        items, size = self._items[kind], self._sizes[kind] + item.size
        if items and not kind:  # token ids are padded to the longest text
            size = max(self._sizes[kind] // len(items), item.size) * (len(items) + 1)
        if items and (len(items) == MAX_TEXTS[self._options.task] or size > MAX_CHARACTERS):
            yield EncoderRequest(self._options, items)
            items, size = self._items[kind], self._sizes[kind] = [], item.size
        items.append(item)
        self._sizes[kind] = size

    def _rest(self) -> Iterator[EncoderRequest]:
        return (EncoderRequest(self._options, items) for items in self._items.values() if items)


def _checked_text(name: str, text: Any, task: Task) -> str | tuple[int, ...]:
    """Return a text or token ids to send. Raises InflightError for others."""
    if isinstance(text, str):
        check_utf8(name, text)
        return text
    only_texts = task in ("rerank", "text2text")
    expected = "a text" if only_texts else "a text, or a list of token ids"
    if only_texts or isinstance(text, bytes | bytearray | Mapping) or not hasattr(text, "__iter__"):
        raise invalid_value(name, text, expected)
    ids = tuple(text)
    for each in ids:
        if not is_int(each) or not 0 <= each <= _MAX_ID:
            what = f"{name} has the token id {shorten(each)}; token ids are whole numbers from 0 to {_MAX_ID}"
            raise InflightError(what, "invalid_token_ids")
    if not ids:
        raise InflightError(f"{name} has no token ids; send at least one", "empty_prompt")
    return tuple(map(int, ids))


def join(splitter: Splitter, options: EncoderOptions, requests: Sequence[EncoderRequest]) -> Any:
    """Return the result of a call: of the answers of all its requests, in the caller's order.

    Raises InflightError if no request has an answer, or if answers are of different models.
    """
    import numpy

    answers = [answer for request in requests for answer in request.answers]
    errors = dict(splitter.errors)
    for request in requests:
        errors |= request.errors
    if requests and not answers:
        raise errors[min(index for request in requests for index in request.errors)]
    widths = {width for answer in answers if (width := answer.values.shape[1])} or {0}
    if len(widths) > 1:
        raise InflightError(
            "the requests of one call were answered by different models; send the texts again", "answer_damaged"
        )
    values = numpy.full((splitter.count, widths.pop()), math.nan, numpy.float32)
    logits = numpy.full(values.shape, math.nan, numpy.float32)
    tokens = numpy.zeros(splitter.count, numpy.int64)
    truncated = numpy.zeros(splitter.count, bool)
    for answer in answers:
        rows = list(answer.indices)
        if answer.values.shape[1]:  # else a gateway, for texts that all have an error
            values[rows] = answer.values
            if answer.logits is not None:
                logits[rows] = answer.logits
        tokens[rows], truncated[rows] = answer.input_tokens, answer.truncated
    failed = sorted(errors)
    values[failed], tokens[failed], truncated[failed] = math.nan, 0, False
    common: dict[str, Any] = {
        "input_tokens": tuple(tokens.tolist()),
        "truncated": tuple(truncated.tolist()),
        "errors": {index: errors[index] for index in failed},
        "model": requests[0].model if requests else options.model,
    }
    if options.task == "embed":
        return Embeddings(values, **common)
    if options.task == "rerank":
        scores = tuple(values[:, 0].tolist()) if values.shape[1] else (math.nan,) * splitter.count
        ranking = [RankedDocument(index, score) for index, score in enumerate(scores) if not math.isnan(score)]
        # By logits where scores are rounded to the same number. They are not compared first, since a gateway has none.
        ranking.sort(key=lambda document: (-document.score, -logits[document.index, 0]))
        return Reranking(tuple(ranking[: options.top_n]), scores, **common)
    if options.task == "text2text":
        read = (zip(each.indices, each.texts, each.finish_reasons, strict=True) for each in answers)
        texts = {index: (text, reason) for answer in read for index, text, reason in answer}
        written = numpy.nan_to_num(values[:, 0]).astype(int).tolist() if values.shape[1] else [0] * splitter.count
        none = ("", "")
        found = [none if index in errors else texts.get(index, none) for index in range(splitter.count)]
        return Translations(tuple(t for t, _ in found), tuple(written), tuple(r for _, r in found), **common)
    labels = {index: answer.labels for answer in answers for index in answer.indices}
    classes = (
        _classification(labels.get(index, ()), *rows)
        for index, rows in enumerate(zip(values.tolist(), logits.tolist(), strict=True))
    )
    return Classifications(tuple(classes), **common)


def _classification(labels: Sequence[str], scores: Sequence[float], logits: Sequence[float]) -> Classification:
    if not scores or math.isnan(scores[0]):
        return Classification("", math.nan, {})
    best = max(range(len(scores)), key=lambda number: (scores[number], logits[number]))
    return Classification(labels[best], scores[best], dict(zip(labels, scores, strict=True)))
