"""What can be wrong in the texts of a plan, said before anything is done."""

from __future__ import annotations

from loadtests.analysis.slo import Slo
from loadtests.arrivals.profile import Profile
from loadtests.arrivals.schedule import due_times
from loadtests.connection import parse_headers
from loadtests.plan import LoadPlan
from loadtests.workloads.factory import make_workload
from loadtests.workloads.files import load_files


def check_plan(plan: LoadPlan) -> None:
    """Raises LoadError where its SLO, its headers, its profile or its schedule can't be."""
    parse_headers(plan)
    Profile.parse(plan.arrivals.profile)
    if plan.arrivals.kind == "rate":
        due_times(plan.arrivals, plan.seed, plan.end)
    for text in plan.slo:
        Slo.parse(text)


def check_workload(plan: LoadPlan) -> None:
    """Raises LoadError where the workload can't be made, or a file that it names can't be read."""
    make_workload(plan.workload, load_files(plan.workload), plan.seed)
