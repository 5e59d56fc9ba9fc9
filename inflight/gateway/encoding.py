"""Runs a request for an encoder on a server, and writes its response."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import replace
from typing import Any

from inflight_client import InflightError
from inflight_client.encoder_texts import CONCURRENCY, MAX_TEXTS
from inflight_client.encodings import Classifications, Embeddings, Encodings, Reranking

from inflight.gateway.http import Request, Response
from inflight.gateway.servers import Encoder
from inflight.openai_api.encoding_request import ClassifyRequest, EmbeddingRequest, EncodingRequest, RerankRequest
from inflight.openai_api.encoding_response import classification_parts, embedding_parts, first_error, rerank_body
from inflight.openai_api.errors import ApiError

MAX_TEXTS_IN_FLIGHT = CONCURRENCY * max(MAX_TEXTS.values())
"""Of one request: the client sends its texts in parts."""


class Encoding:
    """One request at one encoder."""

    def __init__(self, wanted: EncodingRequest, encoder: Encoder, timeout: float) -> None:
        """Raises ApiError for what this encoder can't do."""
        self._wanted, self._encoder = wanted, encoder
        self._until = time.monotonic() + timeout
        self._truncate = wanted.truncate
        self.estimated_tokens = wanted.estimated_tokens(encoder.max_seq_len)
        self._texts = "documents" if isinstance(wanted, RerankRequest) else "input"
        if isinstance(wanted, RerankRequest) and wanted.max_tokens_per_doc is not None:
            most = encoder.max_seq_len
            if most is None or wanted.max_tokens_per_doc < most:
                raise ApiError(
                    f"max_tokens_per_doc is {wanted.max_tokens_per_doc}, but documents are cut at the model's limit of"
                    f" {most or 'unknown'} tokens only; leave it out",
                    "unsupported_input",
                    "max_tokens_per_doc",
                )
            self._truncate = True

    async def respond(self, request: Request) -> None:
        """Answer the request. Raises ApiError or InflightError while nothing of the response was sent."""
        wanted, outcome = self._wanted, request.outcome
        outcome.sent = True
        try:
            found = await self._call()
        except asyncio.CancelledError:
            outcome.input_tokens = self.estimated_tokens  # the server may have computed all of them
            raise
        except InflightError as error:
            self._encoder.server.note_failure(error)
            if error.code == "deadline_exceeded":
                outcome.input_tokens = self.estimated_tokens
            raise first_error({0: error}, self._texts, single=True) from None
        for each in found.errors.values():
            self._encoder.server.note_failure(each)
        found = _with_lost_texts(found)
        errors = found.errors
        outcome.input_tokens = found.total_tokens  # also of a request that is refused for one text: it was computed
        if errors and not (wanted.return_errors and all(not each.retry for each in errors.values())):
            raise first_error(errors, self._texts, wanted.size == 1)
        outcome.answered, outcome.texts = True, wanted.size - len(errors)
        request.answered()
        await self._write(request, found)

    async def _call(self) -> Encodings:
        wanted, client = self._wanted, self._encoder.server.client
        options: dict[str, Any] = {
            "truncate": self._truncate,
            "priority": wanted.priority,
            "timeout": max(0.001, self._until - time.monotonic()),
        }
        # With the errors of texts apart, the response can name each by its index in the request.
        if isinstance(wanted, RerankRequest):
            return await client.rerank(
                wanted.query, wanted.documents, top_n=wanted.top_n, return_errors=True, **options
            )
        if isinstance(wanted, EmbeddingRequest):
            return await client.embed(
                wanted.texts,
                input_type=wanted.input_type,
                dimensions=wanted.dimensions,
                return_errors=True,
                **options,
            )
        assert isinstance(wanted, ClassifyRequest)
        return await client.classify(wanted.texts, return_errors=True, **options)

    async def _write(self, request: Request, found: Encodings) -> None:
        wanted, model = self._wanted, self._encoder.model
        if isinstance(found, Embeddings):
            assert isinstance(wanted, EmbeddingRequest)
            await request.respond_in_parts(embedding_parts(found, wanted, model))
        elif isinstance(found, Classifications):
            await request.respond_in_parts(classification_parts(found, model, request.request_id, int(time.time())))
        else:
            assert isinstance(found, Reranking)
            assert isinstance(wanted, RerankRequest)
            version = "2" if request.path.startswith("/v2/") else "1"
            body = rerank_body(found, wanted, model, request.request_id, version, self._encoder.max_seq_len)
            await request.respond(Response(body))


def _with_lost_texts(found: Encodings) -> Encodings:
    """Return a result with an error for each text with values that JSON has no numbers for."""
    import numpy

    if isinstance(found, Embeddings):
        lost = numpy.flatnonzero(~numpy.isfinite(found.vectors).all(axis=1)).tolist()
    elif isinstance(found, Reranking):
        lost = [index for index, score in enumerate(found.scores) if not math.isfinite(score)]
    else:
        assert isinstance(found, Classifications)
        lost = [index for index, each in enumerate(found) if not all(map(math.isfinite, each.scores.values()))]
    errors = {
        index: InflightError("the model's values for this text are not finite", "text_not_computed") for index in lost
    }
    return replace(found, errors=errors | dict(found.errors))
