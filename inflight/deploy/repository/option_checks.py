"""Checks deployment options against their engine."""

from __future__ import annotations

from pathlib import Path

from build_engines.manifest import Manifest
from inflight.deploy.repository.draft_engine import verify_draft_engine
from inflight.deploy.repository.options import DeploymentOptions, check_readable, check_served_model_name
from inflight.deploy.repository.python_backend import check_python_backend_options
from inflight.deploy.repository.tensorrt_llm.backend import read_parameters
from inflight.deploy.repository.typed_parameters import invalid


def check_options(options: DeploymentOptions, engine: Path, manifest: Manifest) -> None:
    """Check the files that options name, and options that exclude each other or don't match the engine.

    Raises BuildError for a draft engine that is missing or damaged, and DeployError `invalid_parameter`.
    """
    if options.draft_engine is not None and options.prompt_lookup:
        raise invalid("A draft engine and prompt lookup were both given; leave one of them out.")
    if options.num_draft_tokens is not None and options.draft_engine is None and not options.prompt_lookup:
        raise invalid(
            f"A number of draft tokens ({options.num_draft_tokens}) was given without a draft engine or prompt"
            " lookup; give one of them too."
        )
    check_served_model_name(options.served_model_name)
    check_readable(engine, options.draft_engine or "", *options.adapters)
    for path in options.adapters:
        if not (path.is_file() or (manifest.target == "llmapi" and path.is_dir())):
            raise invalid(f"There is no LoRA adapter at {path}; give its safetensors file.")
    if manifest.target == "tensorrt-llm":
        read_parameters(options, engine, manifest)
    else:
        check_python_backend_options(options, manifest)
    if options.draft_engine is not None:
        verify_draft_engine(options.draft_engine, engine, manifest)
