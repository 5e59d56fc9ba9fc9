"""Fixtures are grouped by what they make: engines (and checkpoints), server (a Triton), browser (a Chromium), ..."""

import signal

pytest_plugins = [
    "tests.fixtures.browser",
    "tests.fixtures.certificates",
    "tests.fixtures.engines",
    "tests.fixtures.nvidia",
    "tests.fixtures.server",
    "tests.fixtures.tensorrtllm",
]

# A run that a shell started in the background ignores SIGINT, and so would all that its tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
