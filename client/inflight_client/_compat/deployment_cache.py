"""What a client knows of the deployment that it talks to, and since when."""

from __future__ import annotations

import math
import time

from inflight_client._compat.deployment import Deployment
from inflight_client.deadline import DEFAULT_QUERY_TIMEOUT, Deadline
from inflight_client.errors import InflightError, InvalidRequest, ModelNotReady, ServerGone
from inflight_client.versions import warn_if_incompatible

CACHE_SECONDS = 60.0
"""How long a description is trusted: another deployment may be started at the same address while nobody looks."""


class DeploymentCache:
    """The description of a deployment, and how the last attempt to get one failed. Its owner locks it."""

    def __init__(self) -> None:
        self.last: Deployment | None = None
        """The newest description, however old."""
        self._since = -math.inf
        self._failure: InflightError | None = None
        self._failed_at = 0.0
        self._warned = False

    def fresh(self) -> Deployment | None:
        """The description, while it can be trusted."""
        return self.last if self.last is not None and time.monotonic() - self._since < CACHE_SECONDS else None

    def store(self, deployment: Deployment) -> None:
        """Trust a new description; VersionWarning, once, where its version does not fit."""
        self.last, self._since = deployment, time.monotonic()
        if not self._warned:
            self._warned = True
            warn_if_incompatible(deployment.version)

    def record_failure(self, error: InflightError) -> None:
        self._failure, self._failed_at = error, time.monotonic()

    def raise_recent_failure(self, began: float) -> None:
        """Raise what somebody else's attempt failed of since that moment: who waited for it need not fail alike."""
        error = self._failure
        if error is not None and error.retry and self._failed_at >= began:
            raise InflightError(str(error), error.code)

    def invalidate_after(self, error: InflightError) -> None:
        """The server was lost, or does not take what its description says: what is there may be another deployment."""
        if isinstance(error, ServerGone | ModelNotReady) or (
            isinstance(error, InvalidRequest) and error.code == "invalid_request"
        ):
            self.invalidate()

    def invalidate(self) -> None:
        """Look anew before the next call."""
        self._since = -math.inf


def detection_deadline(deadline: Deadline) -> Deadline:
    """The deadline of the questions: the call's own, if that comes first."""
    return deadline.sooner(Deadline(DEFAULT_QUERY_TIMEOUT, "the server's description of its models"))


def as_not_ready(error: InflightError, deadline: Deadline) -> InflightError:
    """A server that takes too long to describe itself is not ready; a call's own deadline stays one."""
    if error.code != "deadline_exceeded" or deadline.passed:
        return error
    return InflightError(str(error), "model_not_ready")
