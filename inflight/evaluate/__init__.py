"""Evaluations over golden sets: batch jobs whose answers are scored, and comparisons of two of them."""
