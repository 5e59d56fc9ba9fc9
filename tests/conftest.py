"""Fixtures are grouped by what they make: engines (checkpoints and engines), server (a running Triton)."""

pytest_plugins = ["tests.fixtures.engines", "tests.fixtures.server"]
