"""Small sample files for workloads, written by `loadtests.samples.generate`."""
