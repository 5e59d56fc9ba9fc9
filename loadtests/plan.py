"""The plan of a run: given on the command line, saved beside the results, and sent to the workers."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from loadtests.mlperf import NAMES, PREFIX
from loadtests.workloads.spec import Task, WorkloadSpec

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class PlanSection(BaseModel):
    """A frozen model without unknown fields; the base of all parts of a plan."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Arrivals(PlanSection):
    """When sessions begin.

    `users`: a closed loop, in which each user starts its next session `pause` seconds after the previous one ended.
    `rate`: an open loop with this many sessions per second, however earlier ones end. `trace`: at the times of the
    workload's trace, `speed` times as fast.
    """

    kind: Literal["users", "rate", "trace"] = "users"
    profile: str = "8"
    """Number of users, or sessions per second, over time; see `loadtests.arrivals.profile`."""
    process: Literal["constant", "poisson", "gamma"] = "poisson"
    """Arrival process of an open loop."""
    burstiness: Positive = 1.0
    """For gamma: shape of the intervals; 1 is Poisson, smaller is burstier."""
    pause: Seconds = 0.0
    """Seconds that a closed-loop user waits between two sessions."""
    speed: Positive = 1.0
    """Speed of a trace's replay, relative to its recording."""


class LoadPlan(PlanSection):
    """What to send where, for how long, and the SLO.

    The run lasts `warmup + seconds`; requests due in the first `warmup` seconds are sent but not counted. After that
    nothing new is sent, and open requests have `drain_seconds` to finish.
    """

    server: str = "127.0.0.1:8001"
    """Server: HOST:PORT for gRPC, or a grpc, grpcs, http or https URL; one that ends in /v1 is a gateway."""
    model: str | None = None
    """Name of the model. [default: the server's text model]"""
    header: tuple[str, ...] = ()
    """Header for every request, as 'NAME: VALUE'; not written to the run's files."""
    ca: str | None = None
    """CA certificates (PEM) to trust instead of the system's."""
    certificate: str | None = None
    """Client certificate (PEM)."""
    key: str | None = None
    """Private key of the certificate (PEM)."""
    chat_template: str | None = None
    """Checkpoint directory with the chat template, for servers without one; every worker's machine needs it."""
    metrics_url: str | None = None
    """URL of the server's metrics. [default: what the server publishes, else port 8002 of its host]"""
    mode: Literal["stream", "unary"] = "stream"
    """stream: token by token (gRPC streaming, /generate_stream); unary: one response (/generate)."""
    input_type: str | None = None
    """Of texts to embed: the name of a prompt of the model, such as query or document."""
    priority: int = 0
    """Priority of requests to an encoder; higher ones first."""
    workload: WorkloadSpec = WorkloadSpec()
    arrivals: Arrivals = Arrivals()
    warmup: Seconds = 0.0
    """Seconds at the start whose requests are not counted."""
    seconds: Positive = 60.0
    """Measured seconds."""
    sessions: Annotated[int, Field(ge=1)] | None = None
    """Maximum number of sessions."""
    drain_seconds: Seconds = 30.0
    """Seconds for open requests to finish at the end of the run."""
    timeout: Positive = 600.0
    """Timeout of each request, in seconds; sent to the server too."""
    temperature: Seconds = 0.0
    """Sampling temperature; 0: greedy decoding."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sample from the most likely tokens with this total probability."""
    ignore_eos: bool = True
    """Generate every answer to its full length, so that lengths are those of the workload."""
    tenant: str = ""
    """Tenant of the requests."""
    seed: int = 0
    """Seed of all random draws."""
    slo: tuple[str, ...] = Field(
        default=(),
        description=f"SLO, such as 'p99 ttft <= 500ms', or the limits of MLPerf: {PREFIX}NAME, with NAME one of "
        f"{', '.join(NAMES)}.",
    )
    price_per_hour: Positive | None = None
    """Price of the server per hour."""
    currency: str = "USD"
    """Currency of the price."""

    @model_validator(mode="after")
    def _check_trace(self) -> Self:
        if self.arrivals.kind == "trace" and not self.workload.trace:
            raise ValueError("arrivals of kind trace need a workload with a trace")
        return self

    @property
    def task(self) -> Task:
        return self.workload.task

    @property
    def encodes(self) -> bool:
        """Whether requests are texts for an encoder or audio, so that no answer streams."""
        return self.task != "generate"

    @property
    def streams(self) -> bool:
        """Whether an answer arrives token by token."""
        return self.mode == "stream" and not self.encodes

    @property
    def end(self) -> float:
        """Seconds after the run's start from which on nothing new is sent."""
        return self.warmup + self.seconds
