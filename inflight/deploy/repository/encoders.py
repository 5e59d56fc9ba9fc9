"""The models of encoders in a repository."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from build_engines.manifest import EncoderManifest
from inflight.deploy.repository import model_configs
from inflight.deploy.repository.options import DeploymentOptions
from inflight.deploy.repository.typed_parameters import invalid


def configure_encoder(config: Any, engine: Path, manifest: EncoderManifest, options: DeploymentOptions) -> None:
    """Apply an encoder's directory, the limits of its engine and the options to its committed configuration.

    Raises DeployError `invalid_parameter` for micro-batches that the engine was not built for.
    """
    asked = options.encoders
    given = {
        "max_batch_tokens": asked.max_batch_tokens,
        "max_batch_texts": asked.max_batch_texts,
        "max_queue_texts": asked.max_queue_texts,
        "max_wait_ms": asked.max_wait_ms,
        "num_requests": asked.num_requests,
        "threads": asked.encoder_threads if manifest.target == "openvino" else None,
    }
    values = {name: str(value) for name, value in given.items() if value is not None}
    own = options.parameters.get(config.name, {})
    limits = {} if manifest.limits is None else manifest.limits.model_dump()
    built = {name: str(value) for name, value in limits.items()}
    model_configs.set_parameters(config, {"engine_dir": str(engine.resolve()), **built, **values, **own})
    for name, most in limits.items():
        text = config.parameters[name].string_value
        if text.isdecimal() and int(text) > most:
            raise invalid(
                f"The parameter {name} of {config.name} is {text}, and {manifest.name} was built for {most} at most;"
                " lower it, or build the engine again."
            )
