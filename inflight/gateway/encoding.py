"""Runs a request for an encoder on a server, and writes its response."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import replace
from typing import Any

from inflight_client import InflightError
from inflight_client.encoder_texts import CONCURRENCY, MAX_TEXTS
from inflight_client.encodings import Classifications, Embeddings, Encodings, Reranking, Translations

from inflight.gateway.http import Request, Response
from inflight.gateway.servers import Encoder
from inflight.openai_api.encoding_request import (
    ClassifyRequest,
    EmbeddingRequest,
    EncodingRequest,
    RerankRequest,
    Text2TextRequest,
)
from inflight.openai_api.encoding_response import (
    classification_parts,
    embedding_parts,
    first_error,
    rerank_body,
    translation_parts,
)
from inflight.openai_api.errors import ApiError

MAX_TEXTS_IN_FLIGHT = CONCURRENCY * max(MAX_TEXTS.values())
"""Of one request: the client sends its texts in parts."""


class Encoding:
    """One request at one encoder."""

    def __init__(self, parsed: EncodingRequest, encoder: Encoder, until: float) -> None:
        """`until` is a moment of the monotonic clock. Raises ApiError for what this encoder can't do."""
        self._parsed, self._encoder = parsed, encoder
        self._until = until
        self._truncate = parsed.truncate
        self.estimated_tokens = parsed.estimated_tokens(encoder.max_seq_len)
        self._texts = "documents" if isinstance(parsed, RerankRequest) else "input"
        if isinstance(parsed, RerankRequest) and parsed.max_tokens_per_doc is not None:
            most = encoder.max_seq_len
            if most is None or parsed.max_tokens_per_doc < most:
                raise ApiError(
                    f"max_tokens_per_doc is {parsed.max_tokens_per_doc}, but documents are cut at the model's limit of"
                    f" {most or 'unknown'} tokens only; leave it out",
                    "unsupported_input",
                    "max_tokens_per_doc",
                )
            self._truncate = True

    async def respond(self, request: Request) -> None:
        """Answer the request. Raises ApiError or InflightError while nothing of the response was sent."""
        parsed, outcome = self._parsed, request.outcome
        outcome.sent = True
        try:
            encodings = await self._call()
        except asyncio.CancelledError:
            outcome.input_tokens = self.estimated_tokens  # the server may have computed all of them
            raise
        except InflightError as error:
            self._encoder.server.note_failure(error)
            if error.code == "deadline_exceeded":
                outcome.input_tokens = self.estimated_tokens
            raise first_error({0: error}, self._texts, single=True) from None
        for each in encodings.errors.values():
            self._encoder.server.note_failure(each)
        encodings = _with_lost_texts(encodings)
        errors = encodings.errors
        if isinstance(encodings, Translations):
            outcome.output_tokens = sum(encodings.output_tokens)
        outcome.input_tokens = encodings.total_tokens  # also of a request that is refused for one text: it was computed
        if errors and not (parsed.return_errors and all(not each.retry for each in errors.values())):
            raise first_error(errors, self._texts, parsed.size == 1)
        outcome.answered, outcome.texts = True, parsed.size - len(errors)
        request.answered()
        await self._write(request, encodings)

    async def _call(self) -> Encodings:
        parsed, client = self._parsed, self._encoder.server.client
        options: dict[str, Any] = {
            "truncate": self._truncate,
            "priority": parsed.priority,
            "timeout": max(0.001, self._until - time.monotonic()),
        }
        # With the errors of texts apart, the response can name each by its index in the request.
        if isinstance(parsed, RerankRequest):
            return await client.rerank(
                parsed.query, parsed.documents, top_n=parsed.top_n, return_errors=True, **options
            )
        if isinstance(parsed, EmbeddingRequest):
            return await client.embed(
                parsed.texts,
                input_type=parsed.input_type,
                dimensions=parsed.dimensions,
                return_errors=True,
                **options,
            )
        assert isinstance(parsed, ClassifyRequest)
        if isinstance(parsed, Text2TextRequest):
            return await client.translate(
                [text for text in parsed.texts if isinstance(text, str)],
                return_errors=True,
                **parsed.options,
                **options,
            )
        return await client.classify(parsed.texts, return_errors=True, **options)

    async def _write(self, request: Request, encodings: Encodings) -> None:
        parsed, model = self._parsed, self._encoder.model
        if isinstance(encodings, Embeddings):
            assert isinstance(parsed, EmbeddingRequest)
            await request.respond_in_parts(embedding_parts(encodings, parsed, model))
        elif isinstance(encodings, Classifications):
            await request.respond_in_parts(classification_parts(encodings, model, request.request_id, int(time.time())))
        elif isinstance(encodings, Translations):
            await request.respond_in_parts(translation_parts(encodings, model))
        else:
            assert isinstance(encodings, Reranking)
            assert isinstance(parsed, RerankRequest)
            version = "2" if request.path.startswith("/v2/") else "1"
            body = rerank_body(encodings, parsed, model, request.request_id, version, self._encoder.max_seq_len)
            await request.respond(Response(body))


def _with_lost_texts(encodings: Encodings) -> Encodings:
    """Return a result with an error for each text with values that JSON has no numbers for."""
    import numpy

    if isinstance(encodings, Translations):
        return encodings
    if isinstance(encodings, Embeddings):
        lost = numpy.flatnonzero(~numpy.isfinite(encodings.vectors).all(axis=1)).tolist()
    elif isinstance(encodings, Reranking):
        lost = [index for index, score in enumerate(encodings.scores) if not math.isfinite(score)]
    else:
        assert isinstance(encodings, Classifications)
        lost = [index for index, each in enumerate(encodings) if not all(map(math.isfinite, each.scores.values()))]
    errors = {
        index: InflightError("the model's values for this text are not finite", "text_not_computed") for index in lost
    }
    return replace(encodings, errors=errors | dict(encodings.errors))
