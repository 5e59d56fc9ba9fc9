"""A job on several machines: its input in parts, each a job of its own, run by workers of Ray."""
