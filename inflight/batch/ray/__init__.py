"""Runs a job on several machines: its input in parts, each a job of its own that Ray workers run."""
