"""One life of a server: from its processes' start to the first token, and to the death of one of them."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from inflight.deploy import log
from inflight.deploy.errors import DeployError, ServerCrashError, ServerHangError
from inflight.deploy.probe import Probe, ProbeError
from inflight.deploy.process import ENGINE_PROCESS, Member, TritonProcess
from inflight.deploy.repository import TEXT_MODELS
from inflight.deploy.stall import Stall

START_ATTEMPTS = 3
"""Triton aborts a start in which a model's process gets no processor time for a second, as on a crowded machine."""

# A server that is ready but generates nothing within this time is broken.
_FIRST_TOKEN_SECONDS = 120.0
# How long a ready server may answer with errors before the start counts as failed.
_ERRORS_SECONDS = 20.0
# Streams whose stub died never end, so no more than this is waited for them. A stream whose engine died ends with an
# error behind the text that is still on its way: that is waited for, at most so often.
_FAREWELL_SECONDS = 0.5
_FAREWELLS = 10
_ORPHANS_SECONDS = 10.0


class Life:
    """A tritonserver's process, how to ask it, and who belongs to it once it stands."""

    def __init__(self, process: TritonProcess, probe: Probe, log_file: Path, log_begins: int = 0) -> None:
        self.process = process
        self.probe = probe
        self.family: list[Member] = []
        self._log = log_file
        self._log_begins = log_begins

    def await_token(self, seconds: float, interrupted: Callable[[], bool], idle_seconds: float) -> None:
        """Wait until the whole way has generated a token; from then on `family` is who belongs to it.

        Raises DeployError `server_start_failed` with the server's own last errors if it ends, takes longer
        than `seconds`, uses neither the processor nor a disk for `idle_seconds`, or answers with errors;
        `interrupted` is asked again and again whether to give up.
        """
        deadline = time.monotonic() + seconds
        stall = Stall(self.process.usage, idle_seconds)
        errors_since: float | None = None
        first: _FirstToken | None = None
        while first is None or not first.came:
            self._check_start(interrupted)
            now = time.monotonic()
            if now > deadline:
                raise self._failed(f"it was not ready within {seconds:.0f} s: {self._reason()}")
            if stall.reached():
                idle = f"its processes used neither the processor nor a disk for {idle_seconds:.0f} s"
                raise self._failed(f"it hangs: {idle}: {self._reason()}", ServerHangError)
            if first is None:
                ready = self.probe.ready()
                self.process.hide_shared_memory()
                if ready:
                    self.family = self.process.family()
                    first = _FirstToken(self.probe)
            elif first.error is not None:
                errors_since = errors_since or now
                dead = self.death()
                self._check_start(interrupted)  # the server's own death may be a crash
                if dead:
                    raise self._failed(dead, ServerCrashError) from first.error
                if now - errors_since > _ERRORS_SECONDS:
                    raise self._failed(f"it is ready but generates nothing: {first.error}") from first.error
                first = None
            if first is None:
                time.sleep(0.05)
            else:
                first.wait(0.05)

    def _check_start(self, interrupted: Callable[[], bool]) -> None:
        code = self.process.poll()
        if code is not None:
            ended = f"it ended with {in_words(code)}: {self._reason()}"
            raise self._failed(ended, ServerCrashError if crashed(code) else DeployError)
        if interrupted():
            raise DeployError("The start was interrupted.", "server_start_failed")

    def end(self, seconds: float) -> None:
        """End the processes, and return when they are gone; without a guard its orphans end a moment later."""
        self.process.end(seconds)
        deadline = time.monotonic() + _ORPHANS_SECONDS
        while any(member.alive() for member in self.family) and time.monotonic() < deadline:
            time.sleep(0.02)

    def death(self) -> str | None:
        """Who of the family has died, in words; None while all live."""
        code = self.process.poll()
        if code is not None:
            return f"{self._first()} (pid {self.process.pid}) ended with {in_words(code)}"
        for member in self.family:
            if not member.alive():
                if not self.family[0].alive():  # the others end with it, maybe since it was looked at
                    member = self.family[0]
                if member.pid == self.process.pid:  # its guard will say how in a moment
                    self.process.wait(1)
                    code = self.process.poll()
                else:
                    code = member.exit_code()
                how = f"ended with {in_words(code)}" if code is not None else "died"
                return f"{member.name} (pid {member.pid}) {how}"
        return None

    def _first(self) -> str:
        """The name of what the guard started: tritonserver, or mpirun above all of them."""
        return self.family[0].name if self.family else "tritonserver"

    def farewell(self, wait: Callable[[float], bool]) -> None:
        """Be ready no more, take no new requests, and let those that run get their errors.

        `wait` lets the seconds given pass, and says whether to go on at once.
        """
        try:
            for model in TEXT_MODELS:
                self.probe.unload(model)
            if any(ENGINE_PROCESS in member.name and not member.alive() for member in self.family):
                for _ in range(_FAREWELLS):
                    if all(map(self.probe.unloaded, TEXT_MODELS)) or wait(_FAREWELL_SECONDS):
                        break
        except ProbeError:
            return  # tritonserver itself is the one that died
        wait(_FAREWELL_SECONDS)

    def _reason(self) -> str:
        return log.reason(self._log, self._log_begins)

    def _failed(self, what: str, kind: type[DeployError] = DeployError) -> DeployError:
        return kind(
            f"tritonserver did not come up: {what.rstrip('.')}. The whole log is {self._log}.",
            "server_start_failed",
        )


class _FirstToken:
    """A request for one token, in a thread of its own: nothing else waits for a server that does not answer."""

    def __init__(self, probe: Probe) -> None:
        self.came = False
        self.error: ProbeError | None = None
        self._probe = probe
        self._thread = threading.Thread(target=self._ask, name="first-token", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> None:
        self._thread.join(seconds)

    def _ask(self) -> None:
        try:
            self._probe.generate(_FIRST_TOKEN_SECONDS)
            self.came = True
        except ProbeError as error:
            self.error = error


def crashed(exit_code: int) -> bool:
    """Whether it ended by a signal; of its ranks' signals mpirun tells as a shell does, by 128 and more."""
    return exit_code < 0 or exit_code > 128


def in_words(exit_code: int) -> str:
    """An exit code as a person says it."""
    if exit_code < 0:
        try:
            return f"signal {-exit_code} ({signal.Signals(-exit_code).name})"
        except ValueError:
            return f"signal {-exit_code}"
    return f"status {exit_code}"
