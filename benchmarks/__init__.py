"""Benchmarks, each as a ratio of two interleaved runs: `make bench`."""
