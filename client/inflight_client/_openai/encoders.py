"""Messages of a gateway's routes of encoders: embeddings as OpenAI has them, reranking as Cohere, classes as vLLM.

inflight's gateway adds `num_input_tokens`, `truncated` and `error` to each result, and `labels` to classes. Its route
of translations is its own.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import httpcore2

from inflight_client._http import channel
from inflight_client._http.infer_requests import AnswerParser, BodyParser
from inflight_client._http.messages import HttpResponse, json_object, json_value
from inflight_client._http.responses import malformed
from inflight_client._openai.errors import error_from_object
from inflight_client._openai.messages import encoded
from inflight_client.dialects import CLASSIFY, EMBEDDINGS, RERANK, TRANSLATE, adapted, route_path
from inflight_client.transport import InferRequest

if TYPE_CHECKING:
    from inflight_client.transport import Array

_ROUTES = {"embed": EMBEDDINGS, "rerank": RERANK, "classify": CLASSIFY, "text2text": TRANSLATE}
_KEYS = {"embed": "embedding", "rerank": "relevance_score", "classify": "probs", "text2text": "text"}


class EncoderHttpRequest:
    """A request for an encoder, whose answer is one response."""

    def __init__(self, request: InferRequest) -> None:
        self.id = request.id
        self.path = _ROUTES[request.task]
        self.headers: Mapping[str, str] = {**request.headers, "x-request-id": request.id}
        self.parser: AnswerParser = BodyParser()
        self._task = request.task
        self._returned_id = ""
        self._count = len(request.body.get("documents") or request.body["input"])
        self._fields = request.body
        self.body = encoded(request.body)

    def adapt(self, dialect: str, api: str) -> None:
        """Spell the request for the server, whose API has the path `api`. Raises InflightError `unsupported_input`."""
        route = _ROUTES[self._task]
        if dialect != "inflight":
            self.body = encoded(adapted(dialect, route, self._fields))
        self.path = route_path(dialect, route, api)

    def begin(self, response: httpcore2.Response, where: str) -> None:
        self._returned_id = channel.header(response, b"x-request-id")

    def parse_event(self, data: bytes) -> HttpResponse | None:
        """Return the outputs as an encoder's model has them."""
        value = json_value(data)
        document = {"results": value} if isinstance(value, list) else json_object(data)  # SGLang's is a list
        try:
            results: list[Mapping[str, Any]] = [{}] * self._count
            for result in document["results" if self._task == "rerank" else "data"]:
                results[result["index"]] = result
            values = _VALUES[self._task](results)
            if self._task == "classify":
                labels = _labels(results, values.shape[1], document.get("labels"))
                best = [[label == result.get("label") for label in labels] for result in results]
                values_by_name: dict[str, Any] = {"scores": values, "labels": labels * self._count}
                values_by_name["logits"] = _stacked(best).reshape(values.shape)
            elif self._task == "rerank":
                places = {result["index"]: place for place, result in enumerate(document["results"])}
                order = [[-places.get(index, 0)] for index in range(self._count)]
                values_by_name = {"scores": values, "logits": _stacked(order)}
            elif self._task == "text2text":
                texts = tuple(str(result.get("text") or "") for result in results)
                reasons = tuple(str(result.get("finish_reason") or "") for result in results)
                values_by_name = {"num_output_tokens": values, "text_output": texts, "finish_reason": reasons}
            else:
                values_by_name = {"embedding": values}
            return HttpResponse(
                {
                    **values_by_name,
                    **_facts(results),
                    "error": tuple(_error(result, _KEYS[self._task]) for result in results),
                    "model": str(document.get("model", "")),
                    "id": self._returned_id,
                }
            )
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise malformed("the results of an encoder", f"{type(error).__name__}: {error}") from None


def _vectors(results: Sequence[Mapping[str, Any]]) -> Array:
    """Return the vectors, NaN for a text without one."""
    import numpy

    vectors = [result.get("embedding") or "" for result in results]
    return _stacked(
        [
            numpy.frombuffer(base64.b64decode(vector, validate=True), "<f4") if isinstance(vector, str) else vector
            for vector in vectors
        ]
    )


def _scores(results: Sequence[Mapping[str, Any]]) -> Array:
    scores = [result.get("relevance_score", result.get("score")) for result in results]
    return _stacked([[math.nan if score is None else score] for score in scores])


def _probabilities(results: Sequence[Mapping[str, Any]]) -> Array:
    return _stacked([result.get("probs", ()) for result in results])


def _written(results: Sequence[Mapping[str, Any]]) -> Array:
    return _stacked([[result.get("num_output_tokens") or 0] for result in results])


_VALUES = {"embed": _vectors, "rerank": _scores, "classify": _probabilities, "text2text": _written}


def _stacked(rows: Sequence[Any]) -> Array:
    """Return rows of one size as float32; empty ones, of texts with an error, as NaN."""
    import numpy

    size = max(map(len, rows))
    array = numpy.full((len(rows), size), math.nan, numpy.float32)
    for place, row in enumerate(rows):
        if len(row):
            array[place] = row
    return array


def _labels(results: Sequence[Mapping[str, Any]], count: int, listed: Any) -> tuple[str, ...]:
    """Return the labels; without a list those that results name, and others as Hugging Face names them."""
    if listed:
        return tuple(map(str, listed))
    labels = [f"LABEL_{place}" for place in range(count)]
    for result in results:
        if result.get("probs"):
            labels[max(range(count), key=result["probs"].__getitem__)] = str(result["label"])
    return tuple(labels)


def _facts(results: Sequence[Mapping[str, Any]]) -> dict[str, Array]:
    import numpy

    return {
        "num_input_tokens": numpy.array([int(result.get("num_input_tokens") or 0) for result in results]),
        "truncated": numpy.array([bool(result.get("truncated")) for result in results]),
    }


def _error(result: Mapping[str, Any], value: str) -> str:
    """Return the error of a text as an encoder's model writes it; empty for a result with a value."""
    if not (details := result.get("error")):
        missing = result.get(value, result.get("score")) in ((None,) if value == "text" else (None, "", []))
        return "the gateway has no value for this text; send it again [answer_damaged]" if missing else ""
    error = error_from_object(details, 400)
    return f"{error} [{error.code}]"
