"""The engine's worker process: receives commands from its parent, steps the engine, sends the events of each step.

A forward pass holds the interpreter lock for its whole duration, so the engine needs its own process. With a
self-scheduling library, the process waits for the library and the parent at once. Started as `python -m
inflight.runtime.engine.worker FD`, with FD a socket to the parent; it ends when the parent does.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection, wait

from inflight.common.cpu_affinity import use_engine_cores
from inflight.common.garbage_collection import freeze_loaded
from inflight.common.process_tree import kill_descendants
from inflight.common.request_error import RequestError
from inflight.runtime.engine.interface import (
    AdapterLoaded,
    AdapterLoader,
    EngineOptions,
    ModelRunner,
    SelfSchedulingRunner,
    load_model_runner,
)
from inflight.runtime.engine.request_queue import error_from_exception
from inflight.runtime.engine.scheduler import Scheduler
from inflight.runtime.messages import EngineStats, FinishReason, GenerationRequest, TokenEvent
from inflight.text.detokenizer import Detokenizer
from inflight.text.tokenizer import load_tokenizer


class StatsReporter:
    """Decides when to report statistics: once per period while the engine works, and as soon as it becomes idle."""

    def __init__(self, engine: Scheduler, period_s: float) -> None:
        self._engine = engine
        self._period_s = period_s
        self._reported_at = -math.inf
        self._reported: EngineStats | None = None

    def due(self) -> EngineStats | None:
        """Return the statistics to report after a step, or None."""
        now = time.monotonic()
        if not self._engine.idle and now - self._reported_at < self._period_s:
            return None
        stats = self._engine.stats()
        if stats == self._reported:
            return None
        self._reported_at, self._reported = now, stats
        return stats


POLL_INTERVAL_S = 0.02
"""How often a quiet self-scheduling library is polled: deadlines pass meanwhile. Also, adapters become ready."""


class AdapterQueue:
    """Loads LoRA adapters beside the steps, one after another, and tells the parent of each when it is in use."""

    def __init__(self, runner: ModelRunner, connection: Connection) -> None:
        self._runner, self._connection = runner, connection
        self._paths: deque[str] = deque()
        self._thread = ThreadPoolExecutor(1)
        self._preparing: Future[Callable[[], None]] | None = None

    def __bool__(self) -> bool:
        return bool(self._paths)

    def add(self, path: str) -> None:
        self._paths.append(path)

    def advance(self) -> None:
        """Put the adapter that is ready in use, and begin with the next. Call it between two steps."""
        if self._preparing is not None and self._preparing.done():
            error = None
            try:
                self._preparing.result()()
            except Exception as failed:
                error = " ".join(str(failed).split())
            self._preparing = None
            self._connection.send(AdapterLoaded(self._paths.popleft(), error))
        if self._preparing is None and self._paths:
            self._preparing = self._thread.submit(self._prepare, self._paths[0])

    def _prepare(self, path: str) -> Callable[[], None]:
        if not isinstance(self._runner, AdapterLoader):
            raise ValueError("this engine loads no adapters while it runs; start it with --lora")
        return self._runner.prepare_adapter(path)


def serve(connection: Connection) -> None:
    """Load the engine that the first message describes, then step it until the parent closes.

    The first answer is the engine's limits, or one line with the reason why it can't be loaded. Each further one has
    the events of a step and sometimes the engine's statistics; the answer to `stats` has only the statistics.
    """
    options: EngineOptions = connection.recv()
    try:
        runner = load_model_runner(options)
        load = partial(_load_detokenizer, options)
        engine = Scheduler(runner, options.max_queue_size, load, options.stream_interval)
        freeze_loaded()
    except Exception as error:
        connection.send(" ".join(f"{type(error).__name__}: {error}".split()))
        raise
    pushing = runner if isinstance(runner, SelfSchedulingRunner) else None
    try:
        connection.send(engine.limits)
        adapters = AdapterQueue(runner, connection)
        _run(connection, engine, pushing, adapters, StatsReporter(engine, options.stats_period_s))
    finally:
        if pushing is not None:
            pushing.close()


def _run(
    connection: Connection,
    engine: Scheduler,
    self_scheduling: SelfSchedulingRunner | None,
    adapters: AdapterQueue,
    reporter: StatsReporter,
) -> None:
    events: list[TokenEvent] = []
    while _process_commands(connection, engine, self_scheduling, adapters, events):
        adapters.advance()
        engine.step()
        stats = reporter.due()
        if events or stats:
            connection.send((events, stats))
            events.clear()


def _process_commands(
    connection: Connection,
    engine: Scheduler,
    self_scheduling: SelfSchedulingRunner | None,
    adapters: AdapterQueue,
    events: list[TokenEvent],
) -> bool:
    """Execute the received commands, blocking while there is no other work; return False once the parent has closed."""
    if self_scheduling is not None and not events:
        wait([connection, self_scheduling.arrivals], None if engine.idle and not adapters else POLL_INTERVAL_S)
    while connection.poll(
        0 if events or self_scheduling is not None or not engine.idle else POLL_INTERVAL_S if adapters else None
    ):
        try:
            command, argument = connection.recv()
        except EOFError:
            return False
        if command == "submit":
            _submit(engine, argument, events)
        elif command == "cancel":
            engine.cancel(argument)
        elif command == "adapter":
            adapters.add(argument)
        elif command == "stats":
            connection.send(engine.stats())
    return True


def _submit(engine: Scheduler, argument: tuple[int, GenerationRequest], events: list[TokenEvent]) -> None:
    handle, request = argument
    try:
        engine.submit(request, events.append, handle)
    except Exception as error:  # one request must not end the others
        events.append(TokenEvent(handle, (), FinishReason.ERROR, error=error_from_exception(error)))


def _load_detokenizer(options: EngineOptions) -> Detokenizer:
    # Texts are decoded one at a time here, and sharing them among threads would take longer.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        return Detokenizer(load_tokenizer(options.model_dir), options.skip_special_tokens)
    except Exception as error:
        raise RequestError(f"the engine can't search text for stop words: {error}", "invalid_request") from error


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when Ctrl-C ends the engine
    use_engine_cores()
    status = 0
    try:
        serve(Connection(int(sys.argv[1])))
    except (BrokenPipeError, ConnectionResetError, EOFError):
        pass  # the parent has exited
    except Exception:
        traceback.print_exc()
        status = 1
    kill_descendants()  # also the processes of a library that failed to load
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # skips the shutdown of the library's thread pools, which can take seconds


if __name__ == "__main__":
    main()
