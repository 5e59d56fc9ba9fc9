"""Maps Triton's containers to versions of TensorRT-LLM, and engines to containers.

The versions are those of the compatibility matrix in triton-inference-server/server
(docs/introduction/compatibility.md), the drivers those of NVIDIA's release notes for CUDA.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

REPOSITORY = "nvcr.io/nvidia/tritonserver"
# The last line of TensorRT-LLM that compiles engines: 1.3 removes trtllm-build and everything that belongs to it.
ENGINE_LINE = "1.2"

# The driver that each CUDA was released with, for machines without forward compatibility.
_DRIVERS = {
    "13.1": "590.44.01",
    "13.0": "580.95.05",
    "12.9": "575",
    "12.8": "570",
    "12.6": "560",
    "12.5": "555",
    "12.4": "550",
    "12.3": "545",
}
# Releases, TensorRT-LLM, TensorRT, Python, CUDA.
_MATRIX = """
26.07 26.06 26.05 26.04 | 1.2.1       | 10.14.1.48 | 3.12.3  | 13.1.0.036
26.03                   | 1.2.0       | 10.14.1.48 | 3.12.3  | 13.1.0.036
26.02 26.01 25.12       | 1.1.0       | 10.13.3.9  | 3.12.3  | 13.0.2.006
25.11                   | 1.0.3.2510  | 10.13.3.9  | 3.12.3  | 13.0.2.006
25.10 25.09             | 1.0.0       | 10.11.0.33 | 3.12.3  | 12.9.1.010
25.08                   | 0.21.0      | 10.11.0.33 | 3.12.3  | 12.9.0.043
25.07 25.06             | 0.20.0      | 10.10.0.31 | 3.12.3  | 12.9.0.036
25.05                   | 0.19.0      | 10.9.0.34  | 3.12.3  | 12.8.1.012
25.04                   | 0.18.2      | 10.9.0.34  | 3.12.3  | 12.8.1.012
25.03                   | 0.18.0      | 10.9.0.34  | 3.12.3  | 12.8.1.012
25.02                   | 0.17.0.post1| 10.8.0.43  | 3.12.3  | 12.8.0.038
25.01                   | 0.17.0      | 10.8.0.43  | 3.12.3  | 12.8.0.038
24.12                   | 0.16.0      | 10.7.0     | 3.12.3  | 12.6.3
24.11                   | 0.15.0      | 10.6.0     | 3.10.12 | 12.6.3
24.10                   | 0.14.0      | 10.4.0     | 3.10.12 | 12.6.3
24.09                   | 0.13.0      | 10.4.0     | 3.10.12 | 12.6.3
24.08                   | 0.12.0      | 10.3.0     | 3.10.12 | 12.5.1
"""


@dataclass(frozen=True)
class Container:
    """One release of Triton's container with TensorRT-LLM, and its versions.

    `minimum_driver` is the driver that its CUDA was released with. GPUs for data centres also accept NVIDIA's
    older long-term branches, so a driver below it is a reason to warn, not to refuse.
    """

    release: str
    tensorrt_llm: str
    tensorrt: str
    python: str
    cuda: str

    @property
    def image(self) -> str:
        return f"{REPOSITORY}:{self.release}-trtllm-python-py3"

    @property
    def minimum_driver(self) -> str:
        return _DRIVERS[version_line(self.cuda)]


def _parse(matrix: str) -> Iterator[Container]:
    for line in matrix.strip().splitlines():
        releases, *versions = (cell.strip() for cell in line.split("|"))
        for release in releases.split():
            yield Container(release, *versions)


CONTAINERS = tuple(_parse(_MATRIX))
"""Newest first."""
DEFAULT_CONTAINER = CONTAINERS[0]


def container_for(tensorrt_llm: str) -> Container | None:
    """Return the newest container with exactly this version of TensorRT-LLM, None if unknown."""
    return next((container for container in CONTAINERS if container.tensorrt_llm == tensorrt_llm), None)


def container_from_release(release: str) -> Container | None:
    """Return the container of Triton's release "26.07", None if unknown."""
    return next((container for container in CONTAINERS if container.release == release), None)


def container_from_image(image: str) -> Container | None:
    """Return the container of the image `…/tritonserver:26.07-trtllm-python-py3`, None for any other image."""
    match = re.search(r"tritonserver:(\d\d\.\d\d)-trtllm-python-py3", image)
    return container_from_release(match[1]) if match else None


def version_line(version: str) -> str:
    """Return the minor version, which determines the features: "1.2" of "1.2.1"."""
    return ".".join(version.split(".")[:2])


def driver_suffices(driver: str, minimum: str) -> bool:
    """Return whether a driver ("590.44.01") is at least `minimum`."""
    return _numbers(driver) >= _numbers(minimum)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))
