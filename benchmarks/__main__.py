"""`make bench`: runs all benchmarks, or those that you name, one after the other, and writes the page of results.

A benchmark that fails doesn't keep the others from running; the exit code is then 1. A figure that misses its goal is
not a failure.
"""

from __future__ import annotations

import subprocess
import sys
import time

import click

from benchmarks import llama_cpp
from benchmarks.batch.vllm_peer import installed
from benchmarks.fixtures import BENCH_DIRECTORY
from benchmarks.results import BENCHMARKS, Run, collect, write_page

_NEEDS_PEER = "gateway_peers"
_INSTALL = "not run: neither vLLM nor llama.cpp is installed (see python -m benchmarks.gateway_peers --help)"


@click.command(help=__doc__)
@click.argument("names", nargs=-1, type=click.Choice(list(BENCHMARKS)), metavar="[BENCHMARK]...")
@click.option("--continue", "go_on", is_flag=True, help="Add to the results of the last run.")
def main(names: tuple[str, ...], go_on: bool) -> None:
    before = Run.read() if go_on else Run(time.time(), {}, {})
    failed, left_out = dict(before.failed), dict(before.left_out)
    run = Run(before.began, failed, left_out)
    for name in names or BENCHMARKS:
        failed.pop(name, None)
        left_out.pop(name, None)
        if name == _NEEDS_PEER and not (installed() or llama_cpp.installed()):
            left_out[name] = _INSTALL
        elif code := _run(name):
            failed[name] = f"failed with exit code {code}"
        run.write()
    write_page(collect(run, BENCH_DIRECTORY))
    sys.exit(1 if failed else 0)


def _run(name: str) -> int:
    command = [sys.executable, "-m", f"benchmarks.{name}", *BENCHMARKS[name]]
    click.secho(f"\npython -m {' '.join(command[2:])}", bold=True)
    began = time.monotonic()
    code = subprocess.run(command, check=False).returncode
    click.echo(f"{name} took {(time.monotonic() - began) / 60:.1f} minutes.")
    return code


if __name__ == "__main__":
    main()
