"""The state of a job on disk."""
