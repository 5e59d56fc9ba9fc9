"""Workloads are read here as in a separate process."""

import csv

import pytest


@pytest.fixture(autouse=True)
def default_csv_limit() -> None:
    """Batch jobs raise csv's limit of a field for their whole process, and their tests may have run in this one."""
    csv.field_size_limit(131_072)
