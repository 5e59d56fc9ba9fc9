"""A message queue as a source: holds each message from its delivery until its record is on the disk."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

import orjson

from inflight.batch.errors import BatchError
from inflight.batch.failpoints import failpoint
from inflight.batch.job.rows import InputRecord, Position, RowStatus
from inflight.batch.job.spec import FileFormat, InputSpec, RunOptions
from inflight.batch.outputs.interface import OutputWriter
from inflight.batch.sources.interface import RowSource

BATCH = 64
"""Messages per receive: few are lost to other workers for a while if this one is killed."""
WAIT_SECONDS = 0.5
"""How long a receive waits for messages, and so how long a job that stops may wait for it."""
_TICK_SECONDS = 20.0
"""The longest time between two looks at the backlog; leases are extended then too."""
MESSAGE_ID = "message_id"
"""The value of a JSON message with its id."""


@dataclass(frozen=True)
class Message:
    """One delivery of a message. `values`: None if it is not an object, for the reason `error`.

    `deliveries` counts this one too; `sent`: in seconds since 1970, None if unknown. `receipt` is the queue's own.
    `body`: the message as it was sent, None if it stays in the queue once it is acknowledged.
    """

    id: str
    values: Mapping[str, Any] | None
    deliveries: int
    sent: float | None
    receipt: Any
    error: str = ""
    body: bytes | str | None = None

    @classmethod
    def of_json(cls, id: str, body: bytes | str, deliveries: int, sent: float | None, receipt: Any) -> Message:
        """Return a message; its body must be a JSON object, which gets the id too."""
        try:
            values = orjson.loads(body)
        except ValueError:
            values = None
        if not isinstance(values, dict):
            return cls(id, None, deliveries, sent, receipt, "the message must be a JSON object", body)
        return cls(id, {**values, MESSAGE_ID: id}, deliveries, sent, receipt, body=body)


class MessageQueue(RowSource):
    """A queue whose messages come again unless they are settled, in the order in which they come.

    A kind of queue has the abstract methods. Several threads may call them at a time; they raise BatchError
    `storage_unreachable`, `output_failed` once they have tried for half a minute, and others for what is permanent.
    """

    format: FileFormat = "jsonl"
    key_column: str | None = MESSAGE_ID

    def __init__(self, spec: InputSpec, options: RunOptions) -> None:
        self._spec, self._options = spec, options
        self._held: dict[str, Message] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="batch-leases", daemon=True)
        self.lag: int | None = None
        """Messages without an acknowledgement, as of at most `_TICK_SECONDS` ago."""

    def parameters(self, query: str, *known: str) -> dict[str, str]:
        """Return the parameters of the address that have a value. Raises BatchError for one that is not known."""
        given = {name: values[0] for name, values in parse_qs(query, keep_blank_values=True).items()}
        if unknown := [name for name in given if name not in known]:
            raise BatchError(
                f"{self._spec.shown} has no parameter {', '.join(map(repr, unknown))}; leave it out, or write"
                f" {' or '.join(known)}",
                "input_invalid",
            )
        return {name: value for name, value in given.items() if value}

    def own_dead_letters(self, name: str) -> BatchError:
        """Return the error for dead letters that would come back to this queue."""
        reason = f"dead letters sent to {name} would come back to {self._spec.shown}; give --dead-letters another"
        return BatchError(f"{reason} queue, or a subject of another stream", "output_invalid")

    @abstractmethod
    def receive(self, limit: int, seconds: float) -> Sequence[Message]:
        """Wait up to so many seconds for messages; return at most `limit`. They are this job's for the lease's time."""

    @abstractmethod
    def extend(self, messages: Sequence[Message]) -> None:
        """Begin the time of their lease again."""

    @abstractmethod
    def settle_messages(self, recorded: Sequence[tuple[Message, RowStatus]]) -> None:
        """Acknowledge messages; dead ones go to the queue's dead letters."""

    @abstractmethod
    def release(self, messages: Sequence[Message]) -> None:
        """Let others have messages that were not sent; as far as the queue can, as if they were never delivered."""

    @abstractmethod
    def backlog(self) -> int:
        """Return the number of messages without an acknowledgement."""

    @abstractmethod
    def disconnect(self) -> None: ...

    def join(self, output: OutputWriter, shown: str) -> None:
        """Acknowledge messages in the transactions that write their answers, if the output can do that.

        Raises BatchError for an output that is created at the end, if there is none; `shown` is its address.
        """
        if self._options.forever and not output.is_incremental:
            raise BatchError(
                f"{shown} is created at the end of a job, which --forever never comes to; write to a local .jsonl file"
                " or to a table",
                "output_invalid",
            )

    def read(self, after: Position | None = None, line: int = 0) -> Iterator[InputRecord]:
        """Yield nothing: only `messages` takes messages, and none can be looked at before."""
        return iter(())

    def messages(self) -> Iterator[list[Message]]:
        """Yield the messages that this job does not hold yet, as they come, and empty lists in between. End once the
        queue has been empty for `until_empty` seconds, unless the job has no end. Raises BatchError."""
        self._keeper.start()
        quiet_since = time.monotonic()
        while not self._closing.is_set():
            room = self._options.window - self.held
            if room <= 0:
                yield []
                self._closing.wait(WAIT_SECONDS / 10)
                continue
            messages = self.receive(min(BATCH, room), WAIT_SECONDS)
            yield self._hold(messages)
            now = time.monotonic()
            if messages:
                quiet_since = now
            elif not self._options.forever and now - quiet_since >= self._options.until_empty:
                if self.backlog() <= len(self._held):
                    return
                quiet_since = now  # others hold messages, which come here if those workers die

    @property
    def held(self) -> int:
        """The number of messages that were received and not yet acknowledged."""
        return len(self._held)

    @property
    def age(self) -> float | None:
        """How many seconds ago the oldest message that is held was sent; 0 if none is held, None if unknown."""
        with self._lock:
            sent = [message.sent for message in self._held.values()]
        known = [when for when in sent if when is not None]
        return max(0.0, time.time() - min(known)) if known else None if sent else 0.0

    def settle(self, recorded: Mapping[str, RowStatus]) -> None:
        """Acknowledge messages by their ids; their records must be on the disk. Raises BatchError."""
        with self._lock:
            settled = [(self._held[id], status) for id, status in recorded.items() if id in self._held]
        if settled:
            failpoint("queue.settle")
            self.settle_messages(settled)
            failpoint("queue.settled")
            with self._lock:
                for message, _ in settled:
                    self._held.pop(message.id, None)

    def close(self) -> None:
        """Release the messages that were not recorded, and close the connection."""
        self._closing.set()
        if self._keeper.is_alive():
            self._keeper.join(5.0)
        with suppress(BatchError):  # their lease ends
            self.release(list(self._held.values()))
        self.disconnect()

    def _hold(self, messages: Sequence[Message]) -> list[Message]:
        """Hold the messages; return those that are new. Another delivery of a held one has the receipt that counts."""
        with self._lock:
            new = {message.id: message for message in messages if message.id not in self._held}
            self._held.update((message.id, message) for message in messages)
        return list(new.values())

    def _keep(self) -> None:
        """Extend the leases of all messages that are held, and look at the backlog."""
        while not self._closing.wait(min(self._options.lease_seconds / 3, _TICK_SECONDS)):
            with suppress(BatchError):  # the thread that receives reports it
                with self._lock:
                    held = list(self._held.values())
                self.extend(held)
                self.lag = self.backlog()
