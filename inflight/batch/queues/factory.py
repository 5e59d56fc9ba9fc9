"""Opens the queue of an address."""

from __future__ import annotations

from inflight.batch.job.spec import InputSpec, RunOptions
from inflight.batch.queues.jetstream import JetStreamQueue
from inflight.batch.queues.postgresql import TableQueue
from inflight.batch.queues.source import MessageQueue
from inflight.batch.queues.sqs import SqsQueue
from inflight.batch.storage.addresses import is_database


def open_queue(spec: InputSpec, options: RunOptions) -> MessageQueue:
    """Open the queue of an input. Raises BatchError if it is missing, or its address or options are invalid."""
    if is_database(spec.address):
        return TableQueue(spec, options)
    return (JetStreamQueue if spec.address.startswith(("nats://", "tls://")) else SqsQueue)(spec, options)
