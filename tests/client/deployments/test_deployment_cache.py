"""How long a description of a deployment is trusted, and which calls share a failed attempt to get one."""

from __future__ import annotations

import time
import warnings

import pytest
from inflight_client.deadline import DEFAULT_QUERY_TIMEOUT, NEVER, Deadline
from inflight_client.deployments import deployment_cache
from inflight_client.deployments.deployment import Deployment
from inflight_client.deployments.deployment_cache import DeploymentCache, as_not_ready, detection_deadline
from inflight_client.errors import InflightError
from inflight_client.versions import VersionWarning

from tests.fixtures.errors import raises


def described(version: str | None = None) -> Deployment:
    return Deployment("ensemble", "inflight", {}, {}, version=version)


def test_a_description_is_trusted_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    known = DeploymentCache()
    assert known.fresh() is None
    known.store(described())
    assert known.fresh() is known.last is not None
    monkeypatch.setattr(deployment_cache, "CACHE_SECONDS", 0.0)
    assert known.fresh() is None
    assert known.last is not None, "what must be ended may still be ended by it"


@pytest.mark.parametrize(
    ("code", "forgotten"),
    [
        ("server_gone", True),
        ("server_unreachable", True),
        ("engine_restarting", True),
        ("model_not_found", True),
        ("invalid_request", True),  # what the description says there is no longer taken
        ("invalid_parameter", False),
        ("prompt_too_long", False),
        ("overloaded", False),
        ("deadline_exceeded", False),
    ],
)
def test_it_is_asked_for_again_where_another_one_may_be_there(code: str, forgotten: bool) -> None:
    known = DeploymentCache()
    known.store(described())
    known.invalidate_after(InflightError("it failed", code))
    assert (known.fresh() is None) is forgotten


def test_who_waited_for_an_attempt_that_failed_need_not_make_another() -> None:
    known = DeploymentCache()
    before = time.monotonic()
    known.record_failure(InflightError("nobody answers", "server_unreachable"))
    with raises(InflightError, "server_unreachable"):
        known.raise_recent_failure(before)
    known.raise_recent_failure(time.monotonic() + 1)  # who comes later tries for itself
    known.record_failure(InflightError("its own time was over", "deadline_exceeded"))
    known.raise_recent_failure(before)  # who waits may have more


def test_a_server_that_never_describes_itself_is_not_ready() -> None:
    late = InflightError("it was not there", "deadline_exceeded")
    assert as_not_ready(late, NEVER).code == "model_not_ready"
    over = Deadline(0.0)
    assert as_not_ready(late, over) is late
    refused = InflightError("no", "permission_denied")
    assert as_not_ready(refused, NEVER) is refused


def test_the_questions_keep_to_the_calls_own_deadline() -> None:
    assert detection_deadline(NEVER).seconds == DEFAULT_QUERY_TIMEOUT
    soon = Deadline(0.5)
    assert detection_deadline(soon) is soon


def test_the_warning_is_the_callers_and_comes_once() -> None:
    known = DeploymentCache()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        known.store(described("9.9.9"))
        known.store(described("9.9.9"))
    (warning,) = told
    assert warning.category is VersionWarning
    assert warning.filename == __file__


def test_whoever_wants_to_look_anew_does_however_young_the_machine_is(monkeypatch: pytest.MonkeyPatch) -> None:
    known = DeploymentCache()
    known.store(described())
    known.invalidate()
    monkeypatch.setattr("time.monotonic", lambda: 3.0)  # seconds after the machine was started
    assert known.fresh() is None
