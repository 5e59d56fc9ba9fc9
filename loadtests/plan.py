"""All that a run does, as it is asked for on the command line, saved beside its results, and sent to its workers."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from loadtests.workloads.spec import WorkloadSpec

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class PlanSection(BaseModel):
    """What all parts of a plan have in common: nothing unknown, nothing changed later."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Arrivals(PlanSection):
    """When sessions begin.

    `users`: a closed loop, in which each user begins its next session when the one before has ended, `pause` seconds
    later. `rate`: an open loop, so many sessions a second whatever became of those before. `trace`: at the moments that
    the workload's trace has, `speed` times as fast.
    """

    kind: Literal["users", "rate", "trace"] = "users"
    profile: str = "8"
    """How many users, or sessions a second, over time; see `loadtests.arrivals.profile`."""
    process: Literal["constant", "poisson", "gamma"] = "poisson"
    """How sessions of an open loop follow one another."""
    burstiness: Positive = 1.0
    """For gamma: the shape of the intervals; 1 is Poisson, less comes in bursts."""
    pause: Seconds = 0.0
    """Seconds that a user of a closed loop waits between two sessions."""
    speed: Positive = 1.0
    """How many times as fast as it was recorded a trace is replayed."""


class LoadPlan(PlanSection):
    """What to send where, for how long, and what was promised.

    The run lasts `warmup + seconds`; requests due in the first `warmup` seconds are sent and not counted. After that
    nothing new is sent, and what is on its way has `drain_seconds` seconds to end.
    """

    server: str = "127.0.0.1:8001"
    """The server: HOST:PORT for gRPC, or a URL of grpc, grpcs, http or https."""
    model: str | None = None
    """The model to ask; without it the one that takes text."""
    header: tuple[str, ...] = ()
    """A header for every request, as 'NAME: VALUE'; kept out of the run's files."""
    ca: str | None = None
    """Certificates (PEM) to trust instead of the system's."""
    certificate: str | None = None
    """Certificate (PEM) to show to the server."""
    key: str | None = None
    """The private key of the certificate (PEM)."""
    chat_template: str | None = None
    """A checkpoint's directory, for messages to servers that render none; each worker's machine needs it."""
    metrics_url: str | None = None
    """The server's metrics page; without it port 8002 of its host."""
    mode: Literal["stream", "unary"] = "stream"
    """Answers token by token (gRPC streaming, /generate_stream), or whole (/generate)."""
    workload: WorkloadSpec = WorkloadSpec()
    arrivals: Arrivals = Arrivals()
    warmup: Seconds = 0.0
    """Seconds at the beginning whose requests are not counted."""
    seconds: Positive = 60.0
    """Seconds that are measured."""
    sessions: Annotated[int, Field(ge=1)] | None = None
    """No more sessions than so many."""
    drain_seconds: Seconds = 30.0
    """Seconds that requests have to end when nothing new is sent any more."""
    timeout: Positive = 600.0
    """Seconds for each request; the server is told."""
    temperature: Seconds = 0.0
    """How answers are sampled; 0 is greedy."""
    ignore_eos: bool = True
    """Let every answer run to its full length, so that lengths are those of the workload."""
    tenant: str = ""
    """On whose account the requests are."""
    seed: int = 0
    """What is drawn at random is the same for the same seed."""
    slo: tuple[str, ...] = ()
    """A bound that must hold, such as 'p99 ttft <= 500ms'."""
    price_per_hour: Positive | None = None
    """What an hour of the server costs."""
    currency: str = "USD"
    """The currency of the price."""

    @model_validator(mode="after")
    def _check_trace(self) -> Self:
        if self.arrivals.kind == "trace" and not self.workload.trace:
            raise ValueError("arrivals of kind trace need a workload with a trace")
        return self

    @property
    def end(self) -> float:
        """Seconds after the run's start from which on nothing new is sent."""
        return self.warmup + self.seconds
