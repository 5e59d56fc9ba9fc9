"""Locust's users: one class for each way to ask, and one that follows a schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from locust import User, task
from locust.exception import StopUser

from loadtests.plan import Plan

if TYPE_CHECKING:
    from loadtests.generator.load_test import LoadTest


class InflightUser(User):  # type: ignore[misc]
    """A user of a closed loop: begins a session when the one before has ended."""

    abstract = True
    way: ClassVar[str] = "stream"
    http: ClassVar[bool] = False

    @property
    def load_test(self) -> LoadTest:
        return cast("LoadTest", self.environment.inflight)

    def on_start(self) -> None:
        if self.load_test.failure:
            raise StopUser
        self.number = self.load_test.share.add_user()

    @task  # type: ignore[untyped-decorator]
    def visit(self) -> None:
        if not self.load_test.share.visit(self.number):
            raise StopUser


class GrpcStreamUser(InflightUser):
    """Streams its answers over gRPC."""


class GenerateStreamUser(InflightUser):
    """Streams its answers from /v2/models/MODEL/generate_stream."""

    http = True


class GenerateUser(InflightUser):
    """Waits for whole answers of /v2/models/MODEL/generate."""

    way = "whole"
    http = True


class GrpcUser(InflightUser):
    """Waits for whole answers over gRPC."""

    way = "whole"


class ScheduledArrivals(InflightUser):
    """Sends what an open loop has due in its process, as many requests at once as it takes. One a process is enough."""

    @task  # type: ignore[untyped-decorator]
    def visit(self) -> None:
        self.load_test.share.follow_schedule()
        raise StopUser


WAYS = (GrpcStreamUser, GenerateStreamUser, GenerateUser, GrpcUser)


def user_class_of(plan: Plan) -> type[InflightUser]:
    """The class that does what a plan asks for."""
    if plan.arrivals.kind != "users":
        return ScheduledArrivals
    http = plan.address.startswith(("http://", "https://"))
    return next(kind for kind in WAYS if kind.way == plan.way and kind.http == http)
