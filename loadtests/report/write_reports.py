"""Writes the files for people and scripts from the records of a run."""

from __future__ import annotations

from pathlib import Path

from loadtests.analysis import csv_tables
from loadtests.analysis.report_file import write_figures
from loadtests.analysis.summarize import summarize
from loadtests.analysis.summary import Summary
from loadtests.analysis.sweep import Sweep
from loadtests.report.document import CHART_LIBRARY, write_library
from loadtests.report.page import run_page, sweep_page
from loadtests.run_directory import RunDirectory

PAGE = "report.html"


def write_run_report(directory: RunDirectory, sweep: Path | None = None) -> tuple[Summary, Path]:
    """Write `report.json`, the tables and the page, possibly again. Raises LoadError if the run is incomplete.

    The page is one self-contained file; for a run in the directory of a `sweep` it loads the chart library from there.
    """
    summary = summarize(directory)
    write_figures(summary, directory.path / "report.json")
    csv_tables.write_requests(directory)
    csv_tables.write_timeline(summary.timeline, directory)
    page = directory.path / PAGE
    name, library = directory.path.resolve().name, ""
    if sweep is not None:
        name, library = f"{sweep.resolve().name}/{name}", f"../{CHART_LIBRARY}"
        write_library(sweep)
    page.write_text(run_page(summary, name, library), encoding="utf-8")
    return summary, page


def write_sweep_report(sweep: Sweep, directory: Path) -> Path:
    """Write `sweep.json` and the page in the directory of the sweep's runs."""
    write_figures(sweep, directory / "sweep.json")
    page = directory / PAGE
    write_library(directory)
    page.write_text(sweep_page(sweep, directory.resolve().name, CHART_LIBRARY), encoding="utf-8")
    return page
