"""Small sample files for workloads."""
