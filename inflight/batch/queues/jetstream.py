"""A stream of NATS JetStream as a queue, read by a durable pull consumer."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

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
_NAME = re.compile(r"[^\s.*>/\\]+")
_DENIED = re.compile(r"(?i)authorization|authentication|permissions violation")
_SEED = re.compile(rb"BEGIN USER NKEY SEED-+\s+SU[A-Z2-7]{56}\s")
_MAX_PENDING = 65_536
"""Messages without an acknowledgement, of all workers; far more than they hold."""


class JetStreamQueue(MessageQueue):
    """`nats://HOST,HOST/STREAM?consumer=NAME&subject=FILTER&creds=FILE`. A stream must be there; the consumer is
    created, or changed in what a job needs.

    A message's id is its header Nats-Msg-Id, else # and its number in the stream. The client runs in a thread of its
    own.
    """

    def __init__(self, spec: InputSpec, options: RunOptions) -> None:
        super().__init__(spec, options)
        self._dead_letters = options.dead_letters
        parts = urlsplit(expand_variables(spec.address, "input_invalid"))
        query = self.parameters(parts.query, "consumer", "subject", "creds")
        self._stream, self._consumer = parts.path.strip("/"), query.get("consumer", "inflight")
        if not (_NAME.fullmatch(self._stream) and _NAME.fullmatch(self._consumer)):
            raise BatchError(
                f"{spec.shown} names no stream and consumer; write nats://HOST:PORT/STREAM, with ?subject= and"
                " &consumer= as needed",
                "input_invalid",
            )
        try:
            import nats
            from nats.aio.client import Client
            from nats.js import api, errors

            if "creds" in query:
                import nkeys  # noqa: F401
        except ImportError as error:
            raise package_missing(spec.shown, error, "nats-py", "queues") from error
        if (creds := query.get("creds")) is not None:
            _check_creds(creds, spec.shown)
        user, _, hosts = parts.netloc.rpartition("@")
        name, _, password = map(unquote, user.partition(":"))
        login: dict[str, Any] = {"user": name, "password": password} if password else {"token": name} if name else {}
        changes: dict[str, Any] = {"ack_wait": options.lease_seconds, "backoff": None}
        changes |= {"max_deliver": -1}  # the job counts, so that it has a record of the last one
        changes |= {"filter_subject": query["subject"], "filter_subjects": None} if "subject" in query else {}

        async def open_stream() -> str:
            await self._client.connect(
                [f"{parts.scheme}://{host}" for host in hosts.split(",")],
                **login,
                user_credentials=creds,
                error_cb=self._note,
                max_reconnect_attempts=-1,
                reconnect_time_wait=1,
                ping_interval=20,
            )
            self._streams = self._client.jetstream(timeout=_REQUEST_SECONDS)
            there = await self._streams.stream_info(self._stream)
            config = api.ConsumerConfig(
                durable_name=self._consumer, ack_policy=api.AckPolicy.EXPLICIT, max_ack_pending=_MAX_PENDING
            )
            known = None
            with suppress(errors.NotFoundError):
                known = (await self._streams.consumer_info(self._stream, self._consumer)).config
            config = (known or config).evolve(**changes)
            if config.deliver_subject or config.headers_only or config.ack_policy != api.AckPolicy.EXPLICIT:
                raise BatchError(
                    f"the consumer {self._consumer} of {spec.shown} pushes messages, leaves out their bodies or needs"
                    " no acknowledgement of each; name another with ?consumer=",
                    "input_invalid",
                )
            if config != known:
                await self._streams.add_consumer(self._stream, config)
            self._subscription = await self._streams.pull_subscribe_bind(self._consumer, self._stream)
            if (name := self._dead_letters) is not None:
                target = await self._streams.find_stream_name_by_subject(name)
                if target == self._stream:
                    raise self.own_dead_letters(name)
            return str(fingerprint([self._stream, config.filter_subject or config.filter_subjects, str(there.created)]))

        self._temporary = (nats.errors.Error, OSError, asyncio.TimeoutError)
        self._codes = {errors.NotFoundError: "input_not_found", errors.BadRequestError: "input_invalid"}
        self._noted: Exception | None = None
        self._client = Client()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="batch-jetstream", daemon=True)
        self._thread.start()
        try:
            self.fingerprint = f"queue:{self._call(open_stream, 0.0)}"
        except BaseException:
            self.disconnect()
            raise

    def receive(self, limit: int, seconds: float) -> Sequence[Message]:
        async def fetch() -> list[Msg]:
            try:
                return await self._subscription.fetch(limit, seconds)
            except asyncio.TimeoutError:
                return []

        return [_message(msg) for msg in self._call(fetch)]

    def extend(self, messages: Sequence[Message]) -> None:
        self._reply(messages, b"+WPI")

    def release(self, messages: Sequence[Message]) -> None:
        # Or the server gives them to a receive of this job that it has not ended yet.
        self._call(lambda: self._subscription.unsubscribe(), 0.0)
        self._reply(messages, b"-NAK")

    def settle_messages(self, recorded: Sequence[tuple[Message, RowStatus]]) -> None:
        dead = [message for message, status in recorded if status is RowStatus.DEAD and self._dead_letters]

        async def request() -> None:
            for message in dead:
                sent = {name: each for name, each in (message.receipt.headers or {}).items() if name[:5] != "Nats-"}
                headers = {**sent, "Nats-Msg-Id": f"{self._stream}-{message.id}", "Inflight-Message": message.id}
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
        with suppress(*self._temporary):
            asyncio.run_coroutine_threadsafe(self._client.close(), self._loop).result(_REQUEST_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _reply(self, messages: Sequence[Message], what: bytes) -> None:
        async def publish() -> None:
            for message in messages:
                await self._client.publish(message.receipt.reply, what)
            await self._client.flush(int(_REQUEST_SECONDS))

        if messages:
            self._call(publish, 0.0)

    def _call(self, work: Callable[[], Coroutine[Any, Any, _T]], seconds: float = _TRY_SECONDS) -> _T:
        """Run it in the client's thread; after a failure again, for so many seconds."""
        until = time.monotonic() + seconds
        self._noted = None
        while True:
            try:
                limited = asyncio.wait_for(work(), 3 * _REQUEST_SECONDS)
                return asyncio.run_coroutine_threadsafe(limited, self._loop).result()
            except self._temporary as error:
                if time.monotonic() > until:
                    cause = self._noted if isinstance(error, asyncio.TimeoutError) and self._noted else error
                    default = "storage_denied" if _DENIED.search(str(cause)) else "storage_unreachable"
                    code = next((code for kind, code in self._codes.items() if isinstance(cause, kind)), default)
                    words = scrubbed(str(cause) or type(cause).__name__, self._spec.address)
                    raise BatchError(
                        f"{self._spec.shown} can't be read ({words}); check the server, the user's permissions, the"
                        " stream, and the subject of --dead-letters, or try again later",
                        code,
                    ) from error
            time.sleep(0.5)

    async def _note(self, error: Exception) -> None:
        """Note why a call will time out; the client would log it. A refused login ends the attempts to connect."""
        self._noted = error
        if not hasattr(self, "_streams") and _DENIED.search(str(error)):
            raise error


def _check_creds(path: str, shown: str) -> None:
    with suppress(OSError):
        if _SEED.search(Path(path).read_bytes()):
            return
    raise BatchError(f"the file {path} of ?creds= in {shown} must be one of NATS's credentials files", "input_invalid")


def _message(msg: Msg) -> Message:
    meta = msg.metadata
    id = (msg.headers or {}).get("Nats-Msg-Id") or ""
    if not id or id.startswith("#"):  # # and a number is an id that no header gives
        id = f"#{id or meta.sequence.stream}"
    return Message.of_json(id, msg.data, meta.num_delivered or 1, meta.timestamp.timestamp(), msg)
