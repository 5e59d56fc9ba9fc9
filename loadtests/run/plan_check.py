"""Validates the texts of a plan before anything is done."""

from __future__ import annotations

from loadtests.analysis.slo import parse_slos
from loadtests.arrivals.profile import Profile
from loadtests.arrivals.schedule import due_times
from loadtests.connection import parse_headers
from loadtests.errors import LoadError
from loadtests.plan import LoadPlan
from loadtests.workloads.factory import make_workload
from loadtests.workloads.files import load_files
from loadtests.workloads.prompt_file import PromptFile
from loadtests.workloads.texts import TextFile, TextsWorkload


def check_plan(plan: LoadPlan) -> None:
    """Raises LoadError if the SLO, headers, profile or schedule are invalid."""
    parse_headers(plan)
    Profile.parse(plan.arrivals.profile)
    if plan.arrivals.kind == "rate":
        due_times(plan.arrivals, plan.seed, plan.end)
    _check_task(plan)
    for slo in parse_slos(plan.slo):
        if slo.quantity not in ("e2e", "e2e_sent", "error_rate") and plan.encodes:
            raise LoadError(
                f"the SLO {slo.text!r} limits {slo.quantity}, but an encoder generates no tokens; limit e2e",
                "invalid_parameter",
            )


def check_workload(plan: LoadPlan) -> str:
    """Return a sentence about the lines of its file that are left out, if any. Raises LoadError if the workload is
    invalid, or a file that it names cannot be read."""
    workload = make_workload(plan.workload, load_files(plan.workload), plan.seed)
    source = workload.source if isinstance(workload, TextsWorkload) else workload
    return source.lines.skipped if isinstance(source, PromptFile | TextFile) else ""


def _check_task(plan: LoadPlan) -> None:
    """Refuse options that have no effect on the plan's task."""
    unused: tuple[str, ...] = ("tenant", "chat_template", "temperature", "top_p") if plan.encodes else ("priority",)
    if plan.task != "embed":
        unused += ("input_type",)
    if plan.task == "transcribe":  # its cost is not that of texts
        unused += ("price_per_hour",)
    for name in unused:
        if getattr(plan, name) != LoadPlan.model_fields[name].default:
            raise LoadError(f"{name} has no effect on the task {plan.task}; leave it out", "invalid_parameter")
