"""Serve a Hugging Face checkpoint on NVIDIA Triton with in-flight batching."""

__version__ = "0.1.0"
