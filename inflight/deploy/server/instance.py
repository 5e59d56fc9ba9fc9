"""A server instance: one start of tritonserver, to its first answers and to its exit."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from inflight.deploy.errors import DeployError, ServerCrashError, ServerHangError
from inflight.deploy.repository.model_names import ENCODER_MODELS, ENGINE_MODEL, ENTRY_MODELS, Task
from inflight.deploy.server import triton_log
from inflight.deploy.server.probe import Probe, ProbeError
from inflight.deploy.server.process import ENGINE_PROCESS, ExitPoll, ProcessInfo, TritonProcess
from inflight.deploy.server.stall_detector import StallDetector

MAX_START_ATTEMPTS = 3
"""Triton aborts a start in which a model's process gets no processor time for a second, as on an overloaded machine."""

# A server that is ready but whose models don't answer within this time is broken.
_FIRST_ANSWER_TIMEOUT = 120.0
# How long a ready server may answer with errors before the start counts as failed.
_ERROR_TIMEOUT = 20.0
# Streams of a dead stub never end, so waiting longer is useless. A stream of a dead engine ends with an error after the
# text that is still on its way, for which the flush repeats this often.
_FLUSH_SECONDS = 0.5
_MAX_FLUSHES = 10
_ORPHAN_TIMEOUT = 10.0
_IDLE_SECONDS = 2.0
_IDLE_CPU_FRACTION = 0.05
_REPLACED = {f"{ENGINE_PROCESS} of {ENCODER_MODELS[task]}" for task in ("transcribe", "text2text")}
"""Processes in whose place their models start new ones when they die."""


class ServerInstance:
    """A tritonserver's process, its probe, and, once it is ready, its process tree."""

    def __init__(self, process: TritonProcess, probe: Probe, log_file: Path, log_begins: int = 0) -> None:
        self.process = process
        self.probe = probe
        self.process_tree: list[ProcessInfo] = []
        self._exits = ExitPoll(())
        self._log = log_file
        self._log_begins = log_begins

    def wait_until_answering(self, seconds: float, interrupted: Callable[[], bool], idle_seconds: float) -> None:
        """Wait until the models of each task have answered, with a token or an encoded text, at the server's own ports.
        Then set `process_tree`.

        Raises DeployError `server_start_failed` with the server's own last errors if it exits, takes longer than
        `seconds`, uses neither the processor nor a disk for `idle_seconds`, or answers with errors. `interrupted` is
        polled and may stop the wait.
        """
        deadline = time.monotonic() + seconds
        stall = StallDetector(self.process.resource_usage, idle_seconds)
        errors_since: float | None = None
        first: _FirstRequests | None = None
        while first is None or not (first.answered and self._listens()):
            self._check_start(interrupted)
            now = time.monotonic()
            if now > deadline:
                raise self._start_error(f"it was not ready within {seconds:.0f} s: {self._log_reason()}")
            if stall.is_stalled():
                idle = f"its processes used neither the processor nor a disk for {idle_seconds:.0f} s"
                raise self._start_error(f"it hangs: {idle}: {self._log_reason()}", ServerHangError)
            if first is None:
                ready = self.probe.ready()
                self.process.hide_shared_memory()
                if ready:
                    tree = self.process.process_tree()
                    self.process_tree = [member for member in tree if member.name not in _REPLACED]
                    self._exits.close()
                    self._exits = ExitPoll(self.process_tree)
                    first = _FirstRequests(self.probe)
            elif first.error is not None:
                errors_since = errors_since or now
                dead = self.exit_reason()
                self._check_start(interrupted)  # the server's own exit may be a crash
                if dead:
                    raise self._start_error(dead, ServerCrashError) from first.error
                if now - errors_since > _ERROR_TIMEOUT:
                    raise self._start_error(f"it is ready but does not answer: {first.error}") from first.error
                first = None
            if first is None or first.answered:
                time.sleep(0.05)
            else:
                first.wait(0.05)

    def _listens(self) -> bool:
        """Return whether the last port that Triton opens is its own: where another program has that port, a server that
        is ready ends, and where another has the others, that one answers."""
        return self.probe.metrics is None or self.process.listens(self.probe.metrics[1])

    def _check_start(self, interrupted: Callable[[], bool]) -> None:
        code = self.process.poll()
        if code is not None:
            ended = f"it ended with {describe_exit(code)}: {self._log_reason()}"
            raise self._start_error(ended, ServerCrashError if is_crash(code) else DeployError)
        if interrupted():
            raise DeployError("The start was interrupted.", "server_start_failed")

    def stop(self, seconds: float) -> None:
        """End the processes and wait for their exit; without a guard, orphans end a moment later."""
        self.process.stop(seconds)
        deadline = time.monotonic() + _ORPHAN_TIMEOUT
        while any(member.is_running() for member in self.process_tree) and time.monotonic() < deadline:
            time.sleep(0.02)
        self._exits.close()

    def exit_reason(self) -> str | None:
        """Return which process of the tree has died, in words; None while all run."""
        code = self.process.poll()
        if code is not None:
            return f"{self._main_process_name()} (pid {self.process.pid}) ended with {describe_exit(code)}"
        if not self._exits.may_have_exited():
            return None
        for member in self.process_tree:
            if not member.is_running():
                if not self.process_tree[0].is_running():  # the others end with it, perhaps since the last check
                    member = self.process_tree[0]
                if member.pid == self.process.pid:  # its guard reports the exit code soon
                    self.process.wait(1)
                    code = self.process.poll()
                else:
                    code = member.exit_code()
                how = f"ended with {describe_exit(code)}" if code is not None else "died"
                return f"{member.name} (pid {member.pid}) {how}"
        return None

    def cpu_seconds(self, task: Task) -> float:
        """Return the CPU time that the processes of a task's models have used; those of tritonserver count for
        generation."""
        others = [model for encoder_task, model in ENCODER_MODELS.items() if encoder_task != task]
        own = ENCODER_MODELS[task] if task != "generate" else ""
        return self.process.cpu_seconds(
            lambda name: _is_of(name, own) if own else not any(_is_of(name, model) for model in others)
        )

    def _main_process_name(self) -> str:
        """Return the name of the process that the guard started: tritonserver, or mpirun above all ranks."""
        return self.process_tree[0].name if self.process_tree else "tritonserver"

    def reject_and_flush(self, wait: Callable[[float], bool]) -> None:
        """Make the server not ready, refuse new requests, and let running requests get their errors.

        `wait` sleeps for the given seconds and returns whether to stop early.
        """
        try:
            models = [model for task in self.probe.tasks for model in ENTRY_MODELS[task]]
            for model in models:
                self.probe.unload(model)
            if any(ENGINE_PROCESS in member.name and not member.is_running() for member in self.process_tree):
                for _ in range(_MAX_FLUSHES):
                    if all(map(self.probe.unloaded, models)) or wait(_FLUSH_SECONDS):
                        break
        except ProbeError:
            return  # tritonserver itself died
        wait(_FLUSH_SECONDS)

    def _log_reason(self) -> str:
        return triton_log.failure_reason(self._log, self._log_begins)

    def _start_error(self, reason: str, kind: type[DeployError] = DeployError) -> DeployError:
        return kind(
            f"tritonserver did not start: {reason.rstrip('.')}. The whole log is {self._log}.",
            "server_start_failed",
        )


class _FirstRequests:
    """A request for each task in a separate thread, so that a server that does not answer blocks nothing else."""

    def __init__(self, probe: Probe) -> None:
        self.answered = False
        self.error: ProbeError | None = None
        self._probe = probe
        self._thread = threading.Thread(target=self._send, name="first-requests", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> None:
        self._thread.join(seconds)

    def _send(self) -> None:
        try:
            for task in self._probe.tasks:
                self._probe.ask(task, _FIRST_ANSWER_TIMEOUT)
            self.answered = True
        except ProbeError as error:
            self.error = error


def _is_of(process: str, model: str) -> bool:
    return process.endswith(f" of {model}")


def is_crash(exit_code: int) -> bool:
    """Return whether it exited by a signal; mpirun reports its ranks' signals like a shell, as 128 and more."""
    return exit_code < 0 or exit_code > 128


def describe_exit(exit_code: int) -> str:
    """Describe an exit code for users."""
    if exit_code < 0:
        try:
            return f"signal {-exit_code} ({signal.Signals(-exit_code).name})"
        except ValueError:
            return f"signal {-exit_code}"
    return f"status {exit_code}"


class IdleDetector:
    """Detects an idle server: no new answer, and hardly any processor time used."""

    def __init__(self, probe: Probe, cpu_seconds: Callable[[], float]) -> None:
        self._probe = probe
        self._cpu_seconds = cpu_seconds
        self._restart()

    def is_idle(self) -> bool:
        """Return True once the last two seconds were idle; cheap."""
        if time.monotonic() - self._since < _IDLE_SECONDS:
            return False
        answers, used = self._answers, self._cpu_used
        seconds = time.monotonic() - self._since
        self._restart()
        return answers is not None and answers == self._answers and self._cpu_used - used < seconds * _IDLE_CPU_FRACTION

    def _restart(self) -> None:
        self._since = time.monotonic()
        self._answers = self._probe.total_count()
        self._cpu_used = self._cpu_seconds()


def drain(probe: Probe, seconds: float, force: Callable[[], bool], cpu_seconds: Callable[[], float]) -> bool:
    """Unload the models of all tasks and wait until their requests have ended; return whether all did in time.

    At SIGTERM, Triton stops its models at once, which cuts every gRPC stream without an error. Unloading the models
    that clients call instead refuses new requests with a clear error, makes the server not ready, and lets running
    requests finish. A cancelled stream of the ensemble never ends inside Triton 2.51, so an idle server also counts as
    drained.

    `tensorrt_llm`, which other models call, is unloaded once those have ended. `force` is polled and may end the wait
    before `seconds`. `cpu_seconds` returns what the server's processes have used so far.
    """
    callers = [model for task in probe.tasks for model in ENTRY_MODELS[task]]
    called = [ENGINE_MODEL] if "generate" in probe.tasks else []
    deadline = time.monotonic() + seconds
    rest = IdleDetector(probe, cpu_seconds)
    try:
        for group in (callers, called):
            for model in group:
                probe.unload(model)
            for model in group:
                while not probe.unloaded(model):
                    # The counters don't show the work of these models, which always ends.
                    if model not in ENCODER_MODELS.values() and rest.is_idle():
                        break
                    if time.monotonic() > deadline or force():
                        return False
                    time.sleep(0.05)
    except ProbeError:
        return False  # the server has exited, or does not answer any more
    return True
