"""Fixtures are grouped by what they make: engines (and checkpoints), server (a Triton), browser (a Chromium), ..."""

import gc
import importlib.util
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# What `make test-fast` leaves out: all that starts a Triton, a browser, a database or many processes, compiles an
# engine, or waits.
INTEGRATION = (
    *("serving", "docker", "orchestrators", "test_crashes.py", "test_examples.py", "test_quickstart.py"),
    *("test_client_docs.py", "test_working_directory.py"),
    *("client/end_to_end", "client/_grpc/test_transports.py", "client/test_hurried.py"),
    *("client/_http/test_channel.py", "client/_http/test_network.py", "client/_http/test_real_server.py"),
    *("client/encoders/test_calls.py", "client/encoders/test_failures.py"),
    *("client/test_leak_checks.py", "client/_generate_many/test_early_exit.py", "client/test_docstrings.py"),
    *("client/test_metrics.py", "client/test_package.py"),
    *("batch/crash", "batch/ray", "batch/storage/test_files.py", "batch/state/remote_state", "batch/test_session.py"),
    "batch/test_queues.py",
    *("batch/dispatch/test_dispatcher.py", "batch/dispatch/test_real_server.py", "batch/dispatch/test_refusals.py"),
    *("batch/outputs/test_database.py", "batch/outputs/test_normalized_ids.py"),
    *("batch/outputs/test_sql.py", "batch/sources/test_sql.py", "batch/test_retry.py"),
    *("batch/verify/test_checker.py", "batch/test_retrieval.py", "retrieval"),
    *("build_engines/tensorrt_llm", "build_engines/test_build.py"),
    "build_engines/model_cache/test_obtain.py",
    *("build_engines/test_build_interrupted.py", "build_engines/test_machine.py", "build_engines/test_parity.py"),
    *("commands/batch", "commands/chat/test_command.py", "commands/load", "commands/status", "commands/terminal"),
    *(
        "commands/test_assemble.py",
        "commands/test_doctor.py",
        "commands/test_encode.py",
        "commands/test_generate.py",
        "commands/test_serve.py",
    ),
    "deploy/checks/test_doctor.py",
    *("deploy/publish", "deploy/server", "deploy/repository/test_vendor.py", "deploy/test_gpu_end_to_end.py"),
    *(
        f"gateway/test_{name}.py"
        for name in (
            *("answers", "batches", "encoders", "key_access", "leaving", "page"),
            *("refusals", "spans", "tls", "tools", "workers"),
        )
    ),
    *("gateway/batches", "commands/key", "commands/models", "build_engines/model_cache"),
    *("loadtests/generator", "loadtests/run", "loadtests/truth", "loadtests/report"),
    "loadtests/analysis/comparison/test_compare.py",
    *("runtime/backends", "runtime/engine/test_scheduler_traffic.py", "runtime/metrics/test_engine_metrics.py"),
    *("text/test_stop_words.py", "runtime/triton/stub"),
)

# transformers imports it, and pandas with it, for a kind of decoding that no test uses: a second of each process.
sys.modules["sklearn"] = None  # type: ignore[assignment]

if importlib.util.find_spec("torch"):
    pytest_plugins = [
        "tests.fixtures.browser",
        "tests.fixtures.certificates",
        "tests.fixtures.crashes",
        "tests.fixtures.engines",
        "tests.fixtures.encoders",
        "tests.fixtures.encoder_server",
        "tests.fixtures.gateway",
        "tests.fixtures.hub",
        "tests.fixtures.nvidia",
        "tests.fixtures.hostile_directory",
        "tests.fixtures.postgresql",
        "tests.fixtures.scripted_encoders",
        "tests.fixtures.server",
        "tests.fixtures.speech",
        "tests.fixtures.tensorrt",
        "tests.fixtures.tensorrtllm",
    ]
else:
    pytest_plugins = ["tests.fixtures.runtime_only"]

# How long an example takes to draw or to try says how busy this machine is.
BUSY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", BUSY)  # `make test-all`
settings.register_profile("quick", BUSY, max_examples=25)
settings.load_profile("quick")

# Tiny models spend more time on handing work to torch's threads than on the work: tenfold where cores are busy.
os.environ["OMP_NUM_THREADS"] = "1"

# One port for all servers would not do, and most tests need no gateway.
os.environ["INFLIGHT_SERVE_GATEWAY"] = "0"

# A run that a shell started in the background ignores SIGINT, and so would all that its tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

LONGEST = ("test_quickstart.py", "batch/ray/", "serving/test_smollm2.py")
"""Their tests begin first, as one of them at the end would leave all workers but one without work."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.path.relative_to(Path(__file__).parent).as_posix().startswith(LONGEST))


def pytest_collection_finish() -> None:
    """Exempt the modules and the collected tests from garbage collection: those that collect it take a second less."""
    gc.freeze()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """List the failures also where an error of pytest itself ends the run, as it then prints no summary."""
    if exitstatus == pytest.ExitCode.INTERNAL_ERROR and (
        reporter := session.config.pluginmanager.get_plugin("terminalreporter")
    ):
        reporter.short_test_summary()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="leave out the tests that start servers or take long")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if not config.getoption("--fast"):
        return None
    place = collection_path.relative_to(Path(__file__).parent).as_posix()
    return True if place in INTEGRATION else None
