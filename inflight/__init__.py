"""Serve a Hugging Face checkpoint on NVIDIA Triton with in-flight batching."""

__version__ = "0.1.0"


def compatible(version: str, other: str) -> bool:
    """Whether what one version wrote the other one can run: the first two numbers decide (0.1.0 and 0.1.3 can)."""
    return version.split(".")[:2] == other.split(".")[:2]
