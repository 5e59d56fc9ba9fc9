"""All that a run does, as it is asked for on the command line, saved beside its results, and sent to its workers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from loadtests.workloads.spec import WorkloadSpec

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Part(BaseModel):
    """What all parts of a plan have in common: nothing unknown, nothing changed later."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Arrivals(Part):
    """When sessions begin.

    `users`: a closed loop, in which each user begins its next session when the one before has ended, `pause` seconds
    later. `rate`: an open loop, so many sessions a second whatever became of those before. `trace`: at the moments that
    the workload's trace has, `speed` times as fast.
    """

    kind: Literal["users", "rate", "trace"] = "users"
    profile: str = "8"
    """How many users, or sessions a second, over time; see `loadtests.arrivals.profile`."""
    process: Literal["constant", "poisson", "gamma"] = "poisson"
    burstiness: Positive = 1.0
    """For gamma: the shape of the intervals' distribution. 1 is Poisson, less comes in bursts."""
    pause: Seconds = 0.0
    speed: Positive = 1.0


class Plan(Part):
    """What to send where, for how long, and what was promised.

    The run lasts `warmup + seconds`; requests due in the first `warmup` seconds are sent and not counted. After that
    nothing new is sent, and what is on its way has `grace` seconds to end.
    """

    address: str = "127.0.0.1:8001"
    model: str | None = None
    metrics_url: str | None = None
    way: Literal["stream", "whole"] = "stream"
    """Tokens as they come (gRPC streaming, /generate_stream), or whole answers (/generate)."""
    workload: WorkloadSpec = WorkloadSpec()
    arrivals: Arrivals = Arrivals()
    warmup: Seconds = 0.0
    seconds: Positive = 60.0
    sessions: Annotated[int, Field(ge=1)] | None = None
    """No more sessions than so many."""
    grace: Seconds = 30.0
    timeout: Positive = 600.0
    """For each request; the server is told it."""
    temperature: Seconds = 0.0
    ignore_end: bool = True
    """Let every answer run to its `max_tokens`, so that lengths are those that the workload asks for."""
    tenant: str = ""
    seed: int = 0
    promise: tuple[str, ...] = ()
    """Bounds such as `p99 ttft <= 500ms`; see `loadtests.analysis.promise`."""
    price_per_hour: Positive | None = None
    currency: str = "USD"

    @property
    def end(self) -> float:
        """Seconds after the run's start from which on nothing new is sent."""
        return self.warmup + self.seconds
