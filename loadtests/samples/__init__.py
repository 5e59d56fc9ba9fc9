"""Small files to try workloads with, made by `loadtests.samples.generate`."""
