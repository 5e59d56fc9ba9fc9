"""The OpenAI-compatible HTTP front: what applications call in place of a model server."""
