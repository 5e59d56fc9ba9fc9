"""The models of a server, also of one that keeps its index to itself."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from inflight_client._compat.detection import REFUSAL_CODES, ServerQuery
from inflight_client.errors import InflightError
from inflight_client.results import Model

KNOWN_MODELS = ("ensemble", "postprocessing", "preprocessing", "tensorrt_llm", "tensorrt_llm_bls")
"""The models of TensorRT-LLM's repositories, and ours."""


def list_models(own: str | None) -> Generator[ServerQuery, Any, list[Model]]:
    """The server's index. Where that is refused, as `inflight serve` does, the known models and the client's own.

    Yields questions and is sent the answers; what the server refuses is thrown in.
    """
    try:
        found: list[Model] = yield ServerQuery("index")
    except InflightError as error:
        if error.code not in REFUSAL_CODES:
            raise
    else:
        return sorted(found, key=lambda model: (model.name, model.version))
    models = []
    for name in sorted({*KNOWN_MODELS, *([own] if own else [])}):
        try:
            metadata = yield ServerQuery("metadata", name)
        except InflightError as error:
            if error.code == "model_not_found":
                continue
            if error.code != "model_not_ready":
                raise
            models.append(Model(name, "", "UNAVAILABLE", str(error)))
            continue
        ready = yield ServerQuery("model_ready", name)
        models.append(Model(name, max(metadata.versions, default=""), "READY" if ready else "UNAVAILABLE"))
    return models
