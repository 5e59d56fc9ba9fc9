"""Detects a server's deployment with queries that the caller sends to the server."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from inflight_client.deployments import tensor_names
from inflight_client.deployments.deployment import Deployment, Kind
from inflight_client.deployments.encoder_detection import find_encoders, only_encoders
from inflight_client.deployments.model_config import ModelConfig
from inflight_client.deployments.server_query import ServerQuery, ask
from inflight_client.errors import InflightError
from inflight_client.results import Model
from inflight_client.transport import ModelMetadata

KNOWN_MODELS = (
    *("ensemble", "postprocessing", "preprocessing", "tensorrt_llm", "tensorrt_llm_bls"),
    *("classify", "embedding", "rerank", "whisper"),
)
"""The models of TensorRT-LLM's and inflight's repositories."""


def list_models(own: str | None) -> Generator[ServerQuery, Any, list[Model]]:
    """Return the server's index; if that is restricted, as by `inflight serve`, the known models and the client's own.

    Yields queries and is sent the responses; errors are thrown in.
    """
    index: list[Model] | None = yield from ask("index")
    if index is not None:
        return sorted(index, key=lambda model: (model.name, model.version))
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


TEXT_MODELS = ("ensemble", "tensorrt_llm_bls", "tensorrt_llm")
"""Models that accept text, by upstream's names, in order of preference."""

_INFLIGHT_INPUTS = ("priority", "deadline_ms")


def detect(model: str | None) -> Generator[ServerQuery, Any, Deployment]:
    """Find the model that accepts text, or describe the named one.

    Yields queries and is sent the responses; errors are thrown in. Raises InflightError (`unsupported_deployment`,
    and thrown-in errors such as `model_not_ready` or `server_gone`).
    """
    metadata = yield from (_find_text_model() if model is None else _check_named_model(model))
    kind = _kind(metadata)
    config = yield from _config(metadata.name)
    steps = []
    if kind != "inflight":  # inflight's models are known
        for step in config.steps:
            steps.append((yield from _config(step)))
    engine = next((step for step in steps if {"stop", "input_ids"} <= step.inputs), None)
    special = [step.flag("add_special_tokens") for step in steps if "QUERY" in step.inputs]
    return Deployment(
        metadata.name,
        kind,
        metadata.inputs,
        metadata.outputs,
        _decoupled(config, steps),
        config.parameter("inflight_version") or None,
        _accumulates(metadata, kind, config),
        _stop_model(metadata, kind, config, engine),
        special[0] if special else None,
        config.parameter("inflight_build") or None,
        config.json_parameter("inflight_served"),
    )


def _find_text_model() -> Generator[ServerQuery, Any, ModelMetadata]:
    """Return the metadata of the first text model that is ready."""
    names, listed = list(TEXT_MODELS), "unknown, since it does not list them"
    if (index := (yield from ask("index"))) is not None:
        states = {model.name: model.state for model in index}
        names, listed = _ready_text_models(states), ", ".join(sorted(states)) or "none"
    failure: InflightError | None = None
    for name in names:
        try:
            metadata = yield ServerQuery("metadata", name)
        except InflightError as error:
            if error.code not in ("model_not_ready", "model_not_found"):
                raise
            if failure is None or error.code == "model_not_ready":
                failure = error
            continue
        if _takes_text(metadata):
            return metadata  # type: ignore[no-any-return]
    if failure is not None and failure.code == "model_not_ready":
        raise failure
    encoders = yield from find_encoders()
    if encoders:
        raise only_encoders(each.task for each in encoders)
    raise InflightError(
        f"the server has none of the text models {', '.join(TEXT_MODELS)} (its models: {listed}); name the model that"
        " takes text",
        "unsupported_deployment",
    )


def _ready_text_models(states: Mapping[str, str]) -> list[str]:
    """Return the ready text models of an index; all of its text models if none is ready."""
    for name in TEXT_MODELS:
        if states.get(name) == "LOADING":  # a later client would choose this model
            raise InflightError(f"the server is loading its model {name}; wait until it is ready", "model_not_ready")
        if states.get(name) == "READY":
            break
    ready = [name for name in TEXT_MODELS if states.get(name) == "READY"]
    return ready or [name for name in TEXT_MODELS if name in states]


def _check_named_model(model: str) -> Generator[ServerQuery, Any, ModelMetadata]:
    try:
        metadata = yield ServerQuery("metadata", model)
    except InflightError as error:
        there = (yield from _available_models()) if error.code == "model_not_found" else []
        if not there:
            raise
        raise InflightError(
            f"the server has no model {model}; name one that it has: {', '.join(there)}", error.code
        ) from None
    if not _takes_text(metadata) and not {"input_ids", "output_ids"} <= {*metadata.inputs, *metadata.outputs}:
        raise InflightError(
            f"the model {model} does not have the text inputs of TensorRT-LLM's models (its inputs:"
            f" {', '.join(sorted(metadata.inputs)) or 'none'}); name the model that takes text",
            "unsupported_deployment",
        )
    return metadata  # type: ignore[no-any-return]


def _available_models() -> Generator[ServerQuery, Any, list[str]]:
    """Return the names of the server's models; without an index, those of the text models."""
    try:
        return sorted({model.name for model in (yield ServerQuery("index"))})
    except InflightError:
        pass
    names = []
    for name in TEXT_MODELS:
        try:
            metadata = yield ServerQuery("metadata", name)
        except InflightError:
            continue
        if _takes_text(metadata):
            names.append(name)
    return names


def _config(model: str) -> Generator[ServerQuery, Any, ModelConfig]:
    """Return the model's configuration; an empty one if access is restricted."""
    return ModelConfig((yield from ask("config", model)))


def _takes_text(metadata: ModelMetadata) -> bool:
    inputs = metadata.inputs.keys()
    return (
        "text_input" in inputs
        and bool({tensor_names.TEXT_MODEL.max_tokens, tensor_names.LLMAPI.max_tokens} & inputs)
        and "text_output" in metadata.outputs
    )


def _kind(metadata: ModelMetadata) -> Kind:
    if tensor_names.LLMAPI.max_tokens in metadata.inputs:
        return "llmapi"
    if "finish_reason" in metadata.outputs and metadata.inputs.keys() >= set(_INFLIGHT_INPUTS):
        return "inflight"
    return "tensorrtllm"


def _decoupled(config: ModelConfig, steps: list[ModelConfig]) -> bool | None:
    """Return whether the model streams. An ensemble does if any of its models does; newer Tritons report it."""
    decoupled = [model.decoupled for model in (config, *steps)]
    if any(decoupled):
        return True
    return None if None in decoupled else False


def _accumulates(metadata: ModelMetadata, kind: Kind, config: ModelConfig) -> bool | None:
    """Return whether streamed texts accumulate, which upstream's BLS model configures."""
    scripted = "use_draft_logits" in metadata.inputs and kind != "inflight"
    return None if scripted and not config.known else bool(config.flag("accumulate_tokens"))


def _stop_model(metadata: ModelMetadata, kind: Kind, config: ModelConfig, engine: ModelConfig | None) -> str | None:
    """Return the model for stop requests. An ensemble keeps request ids; upstream's BLS model replaces them."""
    if "stop" in metadata.inputs:
        return metadata.name
    if engine is not None:
        return engine.name
    scripted = "use_draft_logits" in metadata.inputs and kind != "inflight"
    return None if scripted or kind == "llmapi" or (config.known and not config.steps) else "tensorrt_llm"
