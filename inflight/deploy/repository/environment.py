"""Where an engine runs: the container with its versions, and the GPUs that it takes."""

from __future__ import annotations

from build_engines import containers
from build_engines.manifest import Manifest


def world_size(manifest: Manifest) -> int:
    """How many GPUs one instance of the engine takes."""
    return manifest.tensor_parallel * manifest.pipeline_parallel


def required_environment(manifest: Manifest) -> str | None:
    """Where an engine of TensorRT-LLM runs, in words; None for engines that run anywhere."""
    if manifest.target != "tensorrt-llm":
        return None
    place = container_name(manifest) or "where its versions are"
    if manifest.machine is not None:
        place += f", on GPUs of compute capability {manifest.machine.compute_capability}"
    if world_size(manifest) > 1:
        place += f", {world_size(manifest)} of them"
    return place


def container_name(manifest: Manifest) -> str | None:
    """The container that fits, and what is in it."""
    said = manifest.versions.get("tensorrt_llm", "")
    found = containers.container_for(said)
    image = found.image if found else manifest.versions.get("container")
    return f"the container {image} (TensorRT-LLM {said})" if image else None
