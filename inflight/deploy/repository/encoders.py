"""The models of encoders in a repository."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from inflight.deploy.repository import model_configs
from inflight.deploy.repository.options import DeploymentOptions


def configure_encoder(config: Any, engine: Path, options: DeploymentOptions) -> None:
    """Apply an encoder's directory and the options to its committed configuration. Raises DeployError."""
    asked = options.encoders
    given = {
        "max_batch_tokens": asked.max_batch_tokens,
        "max_batch_texts": asked.max_batch_texts,
        "max_queue_texts": asked.max_queue_texts,
        "max_wait_ms": asked.max_wait_ms,
        "num_requests": asked.num_requests,
        "threads": asked.encoder_threads,
    }
    values = {name: str(value) for name, value in given.items() if value is not None}
    own = options.parameters.get(config.name, {})
    model_configs.set_parameters(config, {"engine_dir": str(engine.resolve()), **values, **own})
