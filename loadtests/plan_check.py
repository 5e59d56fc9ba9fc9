"""What can be wrong in the texts of a plan, said before anything is done."""

from __future__ import annotations

from loadtests.analysis.promise import Promise
from loadtests.arrivals.profile import Profile
from loadtests.arrivals.schedule import due_moments
from loadtests.connection import headers_of
from loadtests.plan import Plan
from loadtests.workloads.files import load_files
from loadtests.workloads.make import make_workload


def check_plan(plan: Plan) -> None:
    """Raises LoadError where its promise, its headers, its profile or its schedule can't be."""
    headers_of(plan)
    Profile.parse(plan.arrivals.profile)
    if plan.arrivals.kind == "rate":
        due_moments(plan.arrivals, plan.seed, plan.end)
    for text in plan.promise:
        Promise.parse(text)


def check_workload(plan: Plan) -> None:
    """Raises LoadError where the workload can't be made, or a file that it names can't be read."""
    make_workload(plan.workload, load_files(plan.workload), plan.seed)
