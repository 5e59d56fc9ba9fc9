"""Locust's users: one class for each way to ask, and one that follows a schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from locust import User, task
from locust.exception import StopUser

from loadtests.plan import Plan

if TYPE_CHECKING:
    from loadtests.generator.load_test import LoadTest
    from loadtests.generator.share import Share


class InflightUser(User):  # type: ignore[misc]
    """What all users have: the load test that they are part of."""

    abstract = True

    @property
    def share(self) -> Share:
        """What this process has to send; where it could not begin there is nothing, and the user stops."""
        share = cast("LoadTest", self.environment.inflight).share
        if share is None:
            raise StopUser
        return share


class ClosedLoopUser(InflightUser):
    """Begins a session when the one before has ended."""

    abstract = True
    way: ClassVar[str] = "stream"
    http: ClassVar[bool] = False
    number: int | None = None

    @task  # type: ignore[untyped-decorator]
    def visit(self) -> None:
        if self.number is None:
            self.number = self.share.add_user()
        if not self.share.visit(self.number):
            raise StopUser


class GrpcStreamUser(ClosedLoopUser):
    """Streams its answers over gRPC."""


class GenerateStreamUser(ClosedLoopUser):
    """Streams its answers from /v2/models/MODEL/generate_stream."""

    http = True


class GenerateUser(ClosedLoopUser):
    """Waits for whole answers of /v2/models/MODEL/generate."""

    way = "whole"
    http = True


class GrpcUser(ClosedLoopUser):
    """Waits for whole answers over gRPC."""

    way = "whole"


class ScheduledArrivals(InflightUser):
    """Sends what an open loop has due in its process, as many requests at once as it takes. One a process is enough."""

    @task  # type: ignore[untyped-decorator]
    def follow_schedule(self) -> None:
        self.share.follow_schedule()
        raise StopUser


WAYS = (GrpcStreamUser, GenerateStreamUser, GenerateUser, GrpcUser)


def user_class_of(plan: Plan) -> type[InflightUser]:
    """The class that does what a plan asks for."""
    if plan.arrivals.kind != "users":
        return ScheduledArrivals
    http = plan.address.startswith(("http://", "https://"))
    return next(kind for kind in WAYS if kind.way == plan.way and kind.http == http)
