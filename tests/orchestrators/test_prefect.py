"""The Prefect flow of docs/examples, run by a real Prefect with a separate server on loopback."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import psutil
import pytest

from tests.orchestrators.conftest import EXAMPLES, ROWS, Orchestrated

pytestmark = pytest.mark.slow


@pytest.fixture
def prefect(orchestrated: Callable[[str], Orchestrated]) -> Orchestrated:
    found = orchestrated("prefect")
    found.environment.update(
        {
            "INFLIGHT_SERVERS": found.server,
            "PREFECT_HOME": str(found.folder / "prefect"),
            # reports its use to no server
            "DO_NOT_TRACK": "1",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_TELEMETRY_ENABLE_RESOURCE_METRICS": "false",
        }
    )
    return found


def test_a_stopped_job_is_tried_again_and_goes_on(prefect: Orchestrated) -> None:
    flow = prefect.start("python", str(EXAMPLES / "prefect_flow.py"), "prompts.jsonl", "answers.jsonl")
    assert prefect.stop_once(flow) < ROWS
    said, _ = flow.communicate(timeout=200)
    assert flow.returncode == 0, said
    assert "StoppedError" in said
    assert "Retry 1/20" in said
    assert prefect.finished() == (ROWS, 2)


def test_a_flow_that_is_told_to_stop_lets_its_job_drain(prefect: Orchestrated) -> None:
    flow = prefect.start("python", str(EXAMPLES / "prefect_flow.py"), "prompts.jsonl", "answers.jsonl")
    seen = prefect.stop_once(flow, whole=True)
    servers = psutil.Process(flow.pid).children()
    assert flow.wait(timeout=200) != 0
    for server in servers:  # Prefect's own, which a flow that is ended so leaves behind
        with suppress(psutil.NoSuchProcess):
            server.terminate()
    flow.communicate()
    counts = prefect.counts("stopped")
    assert seen <= counts["ok"] < ROWS
    assert counts["runs"] == 1


def test_a_job_that_can_t_go_on_is_not_tried_again(prefect: Orchestrated) -> None:
    flow = prefect.start("python", str(EXAMPLES / "prefect_flow.py"), "missing.jsonl", "answers.jsonl")
    said, _ = flow.communicate(timeout=200)
    assert flow.returncode != 0
    assert "the job failed with exit code 1" in said
    assert "Retry 1/20" not in said
