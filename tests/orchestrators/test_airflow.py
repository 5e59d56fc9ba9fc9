"""The Airflow DAG of docs/examples, run by a real Airflow with its state in SQLite."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest

from tests.orchestrators.conftest import EXAMPLES, ROWS, Orchestrated

pytestmark = pytest.mark.slow


@pytest.fixture
def airflow(orchestrated: Callable[[str], Orchestrated]) -> Orchestrated:
    found = orchestrated("airflow")
    found.environment.update(
        {
            "AIRFLOW_HOME": str(found.folder / "airflow"),
            "AIRFLOW__CORE__DAGS_FOLDER": str(EXAMPLES),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            # reports its use to no server
            "SCARF_ANALYTICS": "false",
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
    )
    migrated = found.start("airflow", "db", "migrate")
    said, _ = migrated.communicate()
    assert migrated.returncode == 0, said
    return found


def start(airflow: Orchestrated, folder: str) -> subprocess.Popen[str]:
    values = json.dumps({"folder": folder, "server": airflow.server})
    return airflow.start("airflow", "dags", "test", "inflight_batch", "--conf", values)


@pytest.mark.parametrize("whole", [False, True], ids=["the job", "the task"])
def test_a_stopped_job_is_tried_again_and_goes_on(airflow: Orchestrated, whole: bool) -> None:
    """Whether its machine stops it, or Airflow ends the task, which calls `on_kill`."""
    run = start(airflow, str(airflow.folder))
    assert airflow.stop_once(run, whole=whole) < ROWS
    said, _ = run.communicate(timeout=200)
    assert run.returncode == 0, said
    assert "new_state=up_for_retry" in said
    assert "state=success" in said
    assert airflow.finished() == (ROWS, 2)


def test_a_job_that_can_t_go_on_is_not_tried_again(airflow: Orchestrated) -> None:
    run = start(airflow, str(airflow.folder / "empty"))
    said, _ = run.communicate(timeout=200)
    assert "the job failed with exit code 1" in said
    assert "new_state=up_for_retry" not in said
    assert "state=failed" in said
