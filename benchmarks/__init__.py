"""Measurements, each as a ratio of one run: `make bench`."""
