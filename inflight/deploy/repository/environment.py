"""The environment that an engine needs: the container with its versions, and the GPUs."""

from __future__ import annotations

from build_engines import containers
from build_engines.manifest import EngineManifest, Manifest


def world_size(manifest: EngineManifest) -> int:
    """Return how many GPUs one instance of the engine needs."""
    return manifest.tensor_parallel * manifest.pipeline_parallel if isinstance(manifest, Manifest) else 1


def required_environment(manifest: EngineManifest) -> str | None:
    """Describe where an engine of TensorRT or TensorRT-LLM runs; None for engines that run anywhere."""
    if manifest.target not in ("tensorrt-llm", "tensorrt"):
        return None
    place = container_name(manifest) or "where its versions are"
    if manifest.machine is not None:
        place += f", on GPUs of compute capability {manifest.machine.compute_capability}"
    if world_size(manifest) > 1:
        place += f", {world_size(manifest)} of them"
    return place


def container_name(manifest: EngineManifest) -> str | None:
    """Return the matching container and its versions."""
    version = manifest.versions.get("tensorrt_llm", "")
    container = containers.container_for(version)
    image = container.image if container else manifest.versions.get("container")
    if image is None:
        return None
    return f"the container {image} (TensorRT-LLM {version})" if version else f"the container {image}"
