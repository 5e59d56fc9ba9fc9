"""Finds a server's encoders with queries that the caller sends to the server."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from inflight_client.deployments.model_config import ModelConfig
from inflight_client.deployments.server_query import REFUSAL_CODES, ServerQuery
from inflight_client.encoder_call import MODELS, Task
from inflight_client.errors import InflightError


@dataclass(frozen=True)
class EncoderDeployment:
    """A model that embeds, reranks or classifies texts.

    `served` has the name for applications (`model`) and limits, empty if unknown; `ready` whether it takes requests.
    `build`: equal for the same engine and tokenizer.
    """

    task: Task
    model: str
    ready: bool
    version: str | None = None
    served: Mapping[str, str | int] = field(default_factory=dict)
    build: str | None = None

    @property
    def dimensions(self) -> int | None:
        """The size of an embedding; None if it is unknown."""
        size = self.served.get("dimensions")
        return size if isinstance(size, int) else None


def find_encoders() -> Generator[ServerQuery, Any, tuple[EncoderDeployment, ...]]:
    """Find the encoders of inflight's repository that the server has.

    Yields queries and is sent the responses; errors are thrown in. Raises InflightError.
    """
    encoders = []
    for task, model in MODELS.items():
        config = ModelConfig()
        try:
            try:
                config = ModelConfig((yield ServerQuery("config", model)))
            except InflightError as error:
                if error.code not in REFUSAL_CODES or error.code == "model_not_found":
                    raise
                yield ServerQuery("metadata", model)
        except InflightError as error:
            if error.code == "model_not_ready":
                encoders.append(EncoderDeployment(task, model, ready=False))
            elif error.code != "model_not_found":
                raise
            continue
        served = config.json_parameter("inflight_served")
        if config.known and served.get("task") != task:
            continue  # another repository's model of that name
        ready = yield ServerQuery("model_ready", model)
        version, build = (config.parameter(name) or None for name in ("inflight_version", "inflight_build"))
        encoders.append(EncoderDeployment(task, model, ready, version, served, build))
    return tuple(encoders)


def only_encoders(tasks: Iterable[str]) -> InflightError:
    """Return the error of a server whose models are for other tasks than generating text."""
    names = sorted({"translate" if task == "text2text" else task for task in tasks})  # as the commands
    return InflightError(
        f"no model of this server generates text, since they {' and '.join(names)}; use "
        f"{' or '.join(f'`inflight {name}`' for name in names)}, or name a server that generates",
        "unsupported_deployment",
    )
