"""Locust's users: one class for each protocol and mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from locust import User, task
from locust.exception import StopUser

from loadtests.plan import LoadPlan

if TYPE_CHECKING:
    from loadtests.generator.shard_runner import ShardRunner


class InflightUser(User):  # type: ignore[misc]
    """Starts a session when the previous one has ended; in an open loop it only waits until all have ended."""

    abstract = True
    mode: ClassVar[str] = "stream"
    http: ClassVar[bool] = False
    number: int | None = None

    @task  # type: ignore[untyped-decorator]
    def run_session(self) -> None:
        share = cast("ShardRunner", self.environment.inflight).shard
        if share is None:  # it could not start
            raise StopUser
        if share.plan.arrivals.kind != "users":
            share.wait_for_schedule()
            raise StopUser
        if self.number is None:
            self.number = share.add_user()
        if not share.run_session(self.number):
            raise StopUser


class GrpcStreamUser(InflightUser):
    """Streams answers over gRPC."""


class GenerateStreamUser(InflightUser):
    """Streams answers from /v2/models/MODEL/generate_stream."""

    http = True


class GenerateUser(InflightUser):
    """Requests unary answers from /v2/models/MODEL/generate."""

    mode = "unary"
    http = True


class GrpcUser(InflightUser):
    """Requests unary answers over gRPC."""

    mode = "unary"


USER_CLASSES = (GrpcStreamUser, GenerateStreamUser, GenerateUser, GrpcUser)


def user_class_for(plan: LoadPlan) -> type[InflightUser]:
    """Return the class for a plan's protocol and mode."""
    http = plan.server.startswith(("http://", "https://"))
    mode = "stream" if plan.streams else "unary"
    return next(kind for kind in USER_CLASSES if kind.mode == mode and kind.http == http)
