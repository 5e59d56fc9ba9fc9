#!/usr/bin/env python3
"""Whether the server in this container is healthy: exit code 0 if it is, 1 and one sentence if not.

It is if it says that it is ready and its models answer: with a token, the whole way, or with an encoded text. A server
that is full answers such a request late or refuses it; then it is healthy as long as answers come out of it. The port
is that of INFLIGHT_SERVE_HTTP_PORT.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import replace

from inflight.deploy.server.ports import reachable
from inflight.deploy.server.probe import Probe, ProbeError


def find_problem(probe: Probe, timeout: float) -> str | None:
    """What is wrong, found within about `seconds`; None if nothing is."""
    deadline = time.monotonic() + timeout
    probe = replace(probe, tasks=probe.find_tasks())
    before = probe.total_count()
    if not (probe.tasks and probe.ready()):
        return f"nothing is ready at {probe.host}:{probe.port}"
    try:
        for task in probe.tasks:
            probe.ask(task, timeout / 2 / len(probe.tasks))
        return None
    except ProbeError as error:
        reason = str(error)
    while True:
        after = probe.total_count()
        if before is not None and after is not None and after > before:
            return None
        if time.monotonic() > deadline:
            return f"it is ready, but no answer comes out of it ({reason})"
        time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="how long it may take (default: %(default)s)")
    seconds = parser.parse_args().seconds
    usual = "127.0.0.1" if os.environ.get("INFLIGHT_SERVE_GRPC_TLS_CA") else os.environ.get("INFLIGHT_SERVE_HOST")
    host = os.environ.get("INFLIGHT_SERVE_HTTP_HOST") or usual or "0.0.0.0"
    port = _port("INFLIGHT_SERVE_HTTP_PORT", "8000")
    metrics_host = os.environ.get("INFLIGHT_SERVE_METRICS_HOST") or usual or "0.0.0.0"
    metrics = (reachable(metrics_host), _port("INFLIGHT_SERVE_METRICS_PORT", "8002"))
    found = find_problem(Probe(reachable(host), port, admin_key="", metrics=metrics), seconds)
    if found is not None:
        sys.exit(f"Unhealthy: {found}.")


def _port(variable: str, usual: str) -> int:
    port = os.environ.get(variable, usual)
    if not port.isdecimal():
        sys.exit(f"Unhealthy: {variable} is {port!r}, which is no port; name the one that serve has.")
    return int(port)


if __name__ == "__main__":
    main()
