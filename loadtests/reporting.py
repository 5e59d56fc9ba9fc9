"""From the records of a run to the files that people and scripts read."""

from __future__ import annotations

from pathlib import Path

from loadtests.analysis import report_file, tables
from loadtests.analysis.summarize import summarize
from loadtests.analysis.summary import Summary
from loadtests.analysis.sweep import Sweep
from loadtests.report.page import run_page, sweep_page
from loadtests.run_directory import RunDirectory

PAGE = "report.html"


def report_run(directory: RunDirectory) -> tuple[Summary, Path]:
    """Write `report.json`, the tables and the page; twice is fine. Raises LoadError where there is no whole run."""
    summary = summarize(directory)
    report_file.write(summary, directory)
    tables.write_requests(directory)
    tables.write_timeline(summary.timeline, directory)
    page = directory.path / PAGE
    page.write_text(run_page(summary), encoding="utf-8")
    return summary, page


def report_sweep(sweep: Sweep, directory: Path) -> Path:
    """Write `sweep.json` and the page beside the sweep's runs."""
    report_file.write_sweep(sweep, directory)
    page = directory / PAGE
    page.write_text(sweep_page(sweep), encoding="utf-8")
    return page
