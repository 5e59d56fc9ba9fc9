"""A stream of NATS JetStream as a queue, read by a durable pull consumer."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from inflight.batch.errors import BatchError, package_missing
from inflight.batch.job.rows import RowStatus
from inflight.batch.job.spec import InputSpec, RunOptions, fingerprint
from inflight.batch.queues.source import Message, MessageQueue
from inflight.batch.storage.secret_address import expand_variables, scrubbed

if TYPE_CHECKING:
    from nats.aio.msg import Msg

_T = TypeVar("_T")
_TRY_SECONDS = 30.0
_REQUEST_SECONDS = 5.0
_MAX_PENDING = 65_536
"""Messages without an acknowledgement, of all workers; far more than they hold."""


class JetStreamQueue(MessageQueue):
    """`nats://HOST/STREAM?consumer=NAME&subject=FILTER`. The consumer is created; a stream must be there.

    A message's id is its header Nats-Msg-Id, else # and its number in the stream. The client runs in a thread of its
    own.
    """

    def __init__(self, spec: InputSpec, options: RunOptions) -> None:
        super().__init__(spec, options)
        self._dead_letters = options.dead_letters
        parts = urlsplit(expand_variables(spec.address, "input_invalid"))
        self._stream = parts.path.strip("/")
        if not self._stream:
            raise BatchError(
                f"{spec.shown} names no stream; write nats://HOST:PORT/STREAM, with ?subject= and &consumer= as needed",
                "input_invalid",
            )
        query = self.parameters(parts.query, "consumer", "subject")
        try:
            import nats
            from nats.js import errors
            from nats.js.api import ConsumerConfig
        except ImportError as error:
            raise package_missing(spec.shown, error, "nats-py", "queues") from error
        self._consumer = query.get("consumer", "inflight")
        config = ConsumerConfig(
            durable_name=self._consumer,
            filter_subject=query.get("subject"),
            ack_wait=options.lease_seconds,
            max_deliver=-1,  # the job counts, so that it has a record of the last one
            max_ack_pending=_MAX_PENDING,
        )

        async def open_stream() -> str:
            self._client = await nats.connect(
                f"{parts.scheme}://{parts.netloc}", error_cb=_ignore, max_reconnect_attempts=-1, reconnect_time_wait=1
            )
            self._streams = self._client.jetstream(timeout=_REQUEST_SECONDS)
            there = await self._streams.stream_info(self._stream)
            await self._streams.add_consumer(self._stream, config)
            self._subscription = await self._streams.pull_subscribe_bind(self._consumer, self._stream)
            if (name := self._dead_letters) is not None:
                target = await self._streams.find_stream_name_by_subject(name)
                if target == self._stream:
                    raise self.own_dead_letters(name)
            return str(there.created)

        self._temporary, self._missing = (nats.errors.Error, OSError, asyncio.TimeoutError), errors.NotFoundError
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="batch-jetstream", daemon=True)
        self._thread.start()
        try:
            created = self._call(open_stream, 0.0)
        except BatchError:
            self.disconnect()
            raise
        self.fingerprint = f"queue:{fingerprint([self._stream, config.filter_subject, created])}"

    def receive(self, limit: int, seconds: float) -> Sequence[Message]:
        async def fetch() -> list[Msg]:
            try:
                return await self._subscription.fetch(limit, seconds)
            except asyncio.TimeoutError:
                return []

        return [_message(msg) for msg in self._call(fetch)]

    def extend(self, messages: Sequence[Message]) -> None:
        self._tell(messages, b"+WPI")

    def release(self, messages: Sequence[Message]) -> None:
        self._tell(messages, b"-NAK")

    def settle_messages(self, recorded: Sequence[tuple[Message, RowStatus]]) -> None:
        dead = [message for message, status in recorded if status is RowStatus.DEAD and self._dead_letters]

        async def request() -> None:
            for message in dead:
                headers = {"Nats-Msg-Id": f"{self._stream}-{message.id}", "Inflight-Message": message.id}
                await self._streams.publish(str(self._dead_letters), message.receipt.data, headers=headers)
            requests = (
                self._client.request(message.receipt.reply, b"+ACK", _REQUEST_SECONDS) for message, _ in recorded
            )
            await asyncio.gather(*requests)

        self._call(request)

    def backlog(self) -> int:
        info = self._call(lambda: self._streams.consumer_info(self._stream, self._consumer))
        return int((info.num_pending or 0) + (info.num_ack_pending or 0))

    def disconnect(self) -> None:
        if (client := getattr(self, "_client", None)) is not None:
            with suppress(*self._temporary):
                asyncio.run_coroutine_threadsafe(client.close(), self._loop).result(_REQUEST_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _tell(self, messages: Sequence[Message], what: bytes) -> None:
        async def publish() -> None:
            for message in messages:
                await self._client.publish(message.receipt.reply, what)
            await self._client.flush(int(_REQUEST_SECONDS))

        if messages:
            self._call(publish, 0.0)

    def _call(self, work: Callable[[], Coroutine[Any, Any, _T]], seconds: float = _TRY_SECONDS) -> _T:
        """Run it in the client's thread; after a failure again, for so many seconds."""
        until = time.monotonic() + seconds
        while True:
            try:
                limited = asyncio.wait_for(work(), 3 * _REQUEST_SECONDS)
                return asyncio.run_coroutine_threadsafe(limited, self._loop).result()
            except self._temporary as error:
                if time.monotonic() > until:
                    words = scrubbed(str(error) or type(error).__name__, self._spec.address)
                    raise BatchError(
                        f"{self._spec.shown} can't be read ({words}); check the server, the stream, and the subject of"
                        " --dead-letters, or try again later",
                        "input_not_found" if isinstance(error, self._missing) else "storage_unreachable",
                    ) from error
            time.sleep(0.5)


def _message(msg: Msg) -> Message:
    meta = msg.metadata
    id = (msg.headers or {}).get("Nats-Msg-Id") or ""
    if not id or id.startswith("#"):  # # and a number is an id that no header gives
        id = f"#{id or meta.sequence.stream}"
    return Message.of_json(id, msg.data, meta.num_delivered or 1, meta.timestamp.timestamp(), msg)


async def _ignore(error: Exception) -> None:
    """The calls report errors; the client would log them too."""
