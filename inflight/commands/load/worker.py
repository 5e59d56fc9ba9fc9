"""`inflight load worker`: a part of a load that another machine asks for."""

from __future__ import annotations

import subprocess
import sys

import click


@click.command(short_help="Send requests for a run of another machine.")
@click.argument("master", metavar="HOST:PORT")
@click.option("--processes", type=click.IntRange(1), default=1, show_default=True, help="So many workers at once.")
def command(master: str, processes: int) -> None:
    """Send requests for the run that `inflight load run --expect-workers N --bind HOST:PORT` makes on another machine.

    The plan comes from there, with the files that it names, and the records go back; it ends with the run.

    \b
      inflight load worker 10.0.0.5:5557
      inflight load worker 10.0.0.5:5557 --processes 4
    """  # fmt: skip
    host, colon, port = master.rpartition(":")
    if not (host and colon and port.isdigit() and 0 < int(port) < 65536):
        raise click.BadParameter("the master is given as HOST:PORT.", param_hint="'HOST:PORT'")
    arguments = [sys.executable, "-P", "-m", "loadtests.generator.main", "--worker-of", master]
    click.echo(f"Sending for the run at {master}, when it is there.", err=True)
    # In sessions of their own: a Ctrl-C at the terminal is passed on below, so that they tell what they have.
    workers = [subprocess.Popen(arguments, start_new_session=True) for _ in range(processes)]
    try:
        codes = [worker.wait() for worker in workers]
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait()
    sys.exit(1 if any(codes) else 0)
