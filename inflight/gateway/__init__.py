"""The OpenAI-compatible HTTP gateway in front of Triton."""
