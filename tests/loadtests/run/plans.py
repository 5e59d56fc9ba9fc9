"""A plan of a load test."""

from __future__ import annotations

from inflight.deploy.server.server import Server
from loadtests.plan import LoadPlan
from loadtests.workloads.spec import WorkloadSpec


def plan(server: Server, **values: object) -> LoadPlan:
    workload = WorkloadSpec(input_tokens="6", output_tokens="4")
    page = f"http://{server.metrics_address}/metrics"
    given = {"server": server.grpc_address, "metrics_url": page, "workload": workload, "seconds": 1.0, **values}
    return LoadPlan.model_validate(given)
