"""Caches the description of the server's deployment."""

from __future__ import annotations

import math
import time

from inflight_client.deadline import DEFAULT_QUERY_TIMEOUT, Deadline
from inflight_client.deployments.deployment import Deployment
from inflight_client.errors import InflightError, InvalidRequest, ModelNotReady, ServerGone
from inflight_client.versions import warn_if_incompatible

CACHE_SECONDS = 60.0
"""How long a description is valid: another deployment may be started at the same address at any time."""


class DeploymentCache:
    """The description of a deployment and the error of the last failed attempt to get one. Callers hold a lock."""

    def __init__(self) -> None:
        self.last: Deployment | None = None
        """The latest description, even if expired."""
        self._since = -math.inf
        self._failure: InflightError | None = None
        self._failed_at = 0.0
        self._warned = False

    def fresh(self) -> Deployment | None:
        """Return the description, or None if it has expired."""
        return self.last if self.last is not None and time.monotonic() - self._since < CACHE_SECONDS else None

    def store(self, deployment: Deployment) -> None:
        """Store a new description; emit a VersionWarning, once, if its version is incompatible."""
        self.last, self._since = deployment, time.monotonic()
        if not self._warned:
            self._warned = True
            warn_if_incompatible(deployment.version)

    def record_failure(self, error: InflightError) -> None:
        self._failure, self._failed_at = error, time.monotonic()

    def raise_recent_failure(self, began: float) -> None:
        """Raise the transient error of another caller's attempt since `began`, for callers that waited for it."""
        error = self._failure
        if error is not None and error.retry and self._failed_at >= began:
            raise InflightError(str(error), error.code)

    def invalidate_after(self, error: InflightError) -> None:
        """Invalidate the description after errors that may mean that another deployment is running."""
        if isinstance(error, ServerGone | ModelNotReady) or (
            isinstance(error, InvalidRequest) and error.code == "invalid_request"
        ):
            self.invalidate()

    def invalidate(self) -> None:
        """Detect the deployment again before the next call."""
        self._since = -math.inf


def detection_deadline(deadline: Deadline) -> Deadline:
    """Return the deadline of detection: the call's own if that is earlier."""
    return deadline.sooner(Deadline(DEFAULT_QUERY_TIMEOUT, "the server's description of its models"))


def as_not_ready(error: InflightError, deadline: Deadline) -> InflightError:
    """Map a timeout of detection to `model_not_ready`, unless the call's own deadline has passed."""
    if error.code != "deadline_exceeded" or deadline.passed:
        return error
    return InflightError(str(error), "model_not_ready")
