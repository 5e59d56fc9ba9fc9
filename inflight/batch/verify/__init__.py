"""Compares what a job has written with its input."""
