"""The engine's own process: takes commands from its parent, turns the engine, sends each turn's events as one message.

A forward pass holds the interpreter lock for its whole length, so the engine has a process to itself. A library
that goes on by itself is waited for together with the parent, whichever comes first.
Started as `python -m inflight.runtime.engine.worker FD`, with FD a socket to the parent; it ends when the parent does.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
import traceback
from functools import partial
from multiprocessing.connection import Connection, wait

from inflight.common.cpu_affinity import use_engine_cores
from inflight.common.process_tree import kill_descendants
from inflight.runtime.engine.interface import EngineOptions, SelfSchedulingRunner, load_model_runner
from inflight.runtime.engine.request_queue import error_from_exception
from inflight.runtime.engine.scheduler import Scheduler
from inflight.runtime.messages import EngineStats, FinishReason, GenerationRequest, RequestError, TokenEvent
from inflight.runtime.text.detokenizer import Detokenizer
from inflight.runtime.text.tokenizer import load_tokenizer


class StatsReporter:
    """Once in a period while the engine works, and as soon as it comes to rest; nothing that was told already."""

    def __init__(self, engine: Scheduler, period_s: float) -> None:
        self._engine = engine
        self._period_s = period_s
        self._reported_at = -math.inf
        self._reported: EngineStats | None = None

    def due(self) -> EngineStats | None:
        """What is to be told after a turn, if anything."""
        now = time.monotonic()
        if not self._engine.idle and now - self._reported_at < self._period_s:
            return None
        stats = self._engine.stats()
        if stats == self._reported:
            return None
        self._reported_at, self._reported = now, stats
        return stats


POLL_INTERVAL_S = 0.02
"""How often a library that goes on by itself is looked after while it says nothing: deadlines pass meanwhile."""


def serve(connection: Connection) -> None:
    """Load the engine that the first message asks for, then turn it until the parent closes.

    The first answer is the engine's limits, or one line that says why it can't be loaded. Each further one has the
    events of a turn and, now and then, how the engine stands; it answers `stats` with that alone.
    """
    options: EngineOptions = connection.recv()
    try:
        stepper = load_model_runner(options)
        engine = Scheduler(stepper, options.max_queue_size, partial(_load_detokenizer, options))
    except Exception as error:
        connection.send(" ".join(f"{type(error).__name__}: {error}".split()))
        raise
    pushing = stepper if isinstance(stepper, SelfSchedulingRunner) else None
    try:
        connection.send(engine.limits)
        _run(connection, engine, pushing, StatsReporter(engine, options.stats_period_s))
    finally:
        if pushing is not None:
            pushing.close()


def _run(
    connection: Connection, engine: Scheduler, self_scheduling: SelfSchedulingRunner | None, reporter: StatsReporter
) -> None:
    events: list[TokenEvent] = []
    while _process_commands(connection, engine, self_scheduling, events):
        engine.step()
        stats = reporter.due()
        if events or stats:
            connection.send((events, stats))
            events.clear()


def _process_commands(
    connection: Connection, engine: Scheduler, self_scheduling: SelfSchedulingRunner | None, events: list[TokenEvent]
) -> bool:
    """Obey what has come, waiting for it while there is nothing to do; false once the parent has closed."""
    if self_scheduling is not None and not events:
        wait([connection, self_scheduling.arrivals], None if engine.idle else POLL_INTERVAL_S)
    while connection.poll(0 if events or self_scheduling is not None or not engine.idle else None):
        try:
            command, argument = connection.recv()
        except EOFError:
            return False
        if command == "submit":
            _submit(engine, argument, events)
        elif command == "cancel":
            engine.cancel(argument)
        elif command == "stats":
            connection.send(engine.stats())
    return True


def _submit(engine: Scheduler, argument: tuple[int, GenerationRequest], events: list[TokenEvent]) -> None:
    handle, request = argument
    try:
        engine.submit(request, events.append, handle)
    except Exception as error:  # nothing that a request holds may end the others
        events.append(TokenEvent(handle, (), FinishReason.ERROR, error=error_from_exception(error)))


def _load_detokenizer(options: EngineOptions) -> Detokenizer:
    # Texts are decoded one at a time here: sharing them among threads would take longer than decoding them.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        return Detokenizer(load_tokenizer(options.model_dir), options.skip_special_tokens)
    except Exception as error:
        raise RequestError(f"the engine can't look for stop words in text: {error}", "invalid_request") from error


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when a Ctrl-C ends the engine
    use_engine_cores()
    status = 0
    try:
        serve(Connection(int(sys.argv[1])))
    except (BrokenPipeError, ConnectionResetError, EOFError):
        pass  # the parent has gone
    except Exception:
        traceback.print_exc()
        status = 1
    kill_descendants()  # also what a library leaves behind that failed while it loaded
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # the library's thread pools need no orderly farewell, and theirs can take seconds


if __name__ == "__main__":
    main()
