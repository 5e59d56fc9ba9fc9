"""Makes a run from beginning to end: looks at the server, starts the generator, follows it, and writes the facts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import IO, Any

from loadtests.connection import connect, without_secrets
from loadtests.errors import LoadError
from loadtests.facts import facts_before
from loadtests.plan import Plan
from loadtests.run_directory import RunDirectory
from loadtests.served import tokenizer_hash, with_own_tokenizer
from loadtests.server_watch import ServerWatch
from loadtests.team import Team

_LOOK_SECONDS = 0.25
_REST_SECONDS = 10.0
"""How long the server may take to come to rest behind the last request."""
_QUIT_SECONDS = 20.0
_LAST_WORDS = 2000


@dataclass(frozen=True)
class Progress:
    """How far a run is: seconds since its start (None before it), open requests, and those that ended, by outcome."""

    t: float | None = None
    open: int = 0
    sent: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)


def make_run(plan: Plan, directory: RunDirectory, team: Team, tell: Callable[[Progress], None]) -> bool:
    """Carry out a plan; `directory` holds the results. Whether it was interrupted: Ctrl-C ends it early, and what came
    until then counts.

    Raises LoadError or InflightError where the server is not there or the generator could not do its work.
    """
    with connect(plan) as client:
        facts = facts_before(plan, client)
    plan = with_own_tokenizer(plan, facts["served"])
    facts["tokenizer"] = tokenizer_hash(plan)
    written, secrets = without_secrets(plan)
    directory.write_plan(written)
    watch = ServerWatch(plan, directory)
    facts["team"] = {"workers": team.workers, "expected": team.expected}
    try:
        with _generator(directory, team, secrets) as generator:
            facts["interrupted"] = _follow(generator, directory, watch, tell)
    finally:
        watch.after(_REST_SECONDS)
        facts["no_server_metrics"] = watch.absent
        facts["ended"] = datetime.now(UTC).isoformat(timespec="seconds")
        directory.write_facts(facts)
    return bool(facts["interrupted"])


def _follow(
    generator: subprocess.Popen[str], directory: RunDirectory, watch: ServerWatch, tell: Callable[[Progress], None]
) -> bool:
    """Wait for the generator's end, and say how far it is; whether it was interrupted."""
    assert generator.stdout is not None
    try:
        begun = _begun(generator, generator.stdout, directory)
        # Now, and not earlier: a server that is idle for long asks itself whether it still answers, and counts that.
        watch.before()
        watch.watch(lambda: begun)
        samples = _Samples(directory)
        while generator.poll() is None:
            tell(samples.progress(time.monotonic() - begun))
            time.sleep(_LOOK_SECONDS)
    except KeyboardInterrupt:
        generator.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            generator.wait(_QUIT_SECONDS)
        _kill(generator)
        return True
    _check(generator, generator.stdout.read(), directory)
    return False


def _begun(generator: subprocess.Popen[str], said: IO[str], directory: RunDirectory) -> float:
    """When the run begins, on the monotonic clock that all processes of a machine share."""
    line = said.readline()
    found = json.loads(line) if line.startswith("{") else {}
    if "begun" in found:
        return float(found["begun"])
    generator.wait()
    _check(generator, line, directory)
    raise LoadError("the load generator ended before it began", "load_failed")


def _check(generator: subprocess.Popen[str], said: str, directory: RunDirectory) -> None:
    for line in said.splitlines():
        found = json.loads(line) if line.startswith("{") else {}
        if "message" in found:
            raise LoadError(found["message"], found["code"])
    if generator.returncode:
        words = directory.log.read_text(errors="replace")[-_LAST_WORDS:].strip() or "it said nothing"
        there = directory.requests.exists() and directory.requests.stat().st_size
        hint = f"; `inflight load report {directory.path}` shows what it told before" if there else ""
        raise LoadError(f"the load generator ended with exit code {generator.returncode}: {words}{hint}", "load_failed")


class _Samples:
    """Reads what the generator's processes tell of themselves, as it comes."""

    def __init__(self, directory: RunDirectory) -> None:
        self._path = directory.generator
        self._read = 0
        self._last: dict[int, dict[str, Any]] = {}

    def progress(self, t: float) -> Progress:
        """The sum over all processes."""
        for sample in self._new():
            if not sample.get("lost"):
                self._last[sample["worker"]] = sample
        outcomes: Counter[str] = Counter()
        for sample in self._last.values():
            outcomes.update(sample["outcomes"])
        return Progress(
            t,
            sum(sample["open"] for sample in self._last.values()),
            sum(sample["sent"] for sample in self._last.values()),
            outcomes,
        )

    def _new(self) -> Iterator[dict[str, Any]]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                text = file.read()
        except FileNotFoundError:
            return
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            yield json.loads(line)


@contextmanager
def _generator(directory: RunDirectory, team: Team, secrets: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """The generator's process, in a group of its own, so that a Ctrl-C at the terminal is ours to pass on."""
    command = [sys.executable, "-P", "-m", "loadtests.generator.main", str(directory.path), *team.arguments()]
    with directory.log.open("w") as log:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
            env={**os.environ, "GRPC_VERBOSITY": "NONE", **secrets},
        )
    try:
        yield process
    finally:
        _kill(process)
        if process.stdout is not None:
            process.stdout.close()


def _kill(process: subprocess.Popen[str]) -> None:
    """With its workers, if it still runs."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
