"""Fixtures are grouped by what they make: engines (and checkpoints), server (a Triton), browser (a Chromium), ..."""

import importlib.util
import signal

from hypothesis import HealthCheck, settings

if importlib.util.find_spec("torch"):
    pytest_plugins = [
        "tests.fixtures.browser",
        "tests.fixtures.certificates",
        "tests.fixtures.crashes",
        "tests.fixtures.engines",
        "tests.fixtures.nvidia",
        "tests.fixtures.hostile_directory",
        "tests.fixtures.postgresql",
        "tests.fixtures.server",
        "tests.fixtures.tensorrtllm",
    ]
else:
    pytest_plugins = ["tests.fixtures.runtime_only"]

# How long an example takes to draw or to try says how busy this machine is.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

# A run that a shell started in the background ignores SIGINT, and so would all that its tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
