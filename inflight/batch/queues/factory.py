"""Opens the queue of an address."""

from __future__ import annotations

from inflight.batch.job.spec import InputSpec, RunOptions
from inflight.batch.queues.source import MessageQueue, QueueSource
from inflight.batch.storage.addresses import is_database


def open_queue(spec: InputSpec, options: RunOptions) -> QueueSource:
    """Open the queue of an input. Raises BatchError if it is missing, or its address or options are invalid."""
    kind: type[MessageQueue]
    if is_database(spec.address):
        from inflight.batch.queues.postgresql import TableQueue

        kind = TableQueue
    elif spec.address.startswith(("nats://", "tls://")):
        from inflight.batch.queues.jetstream import JetStreamQueue

        kind = JetStreamQueue
    else:
        from inflight.batch.queues.sqs import SqsQueue

        kind = SqsQueue
    return QueueSource(kind(spec, options), options)
