"""A queue of Amazon SQS."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from inflight.batch.errors import BatchError, package_missing
from inflight.batch.job.rows import RowStatus
from inflight.batch.job.spec import InputSpec, RunOptions, fingerprint
from inflight.batch.queues.source import Message, MessageQueue
from inflight.batch.storage.secret_address import scrubbed

_AWS_HOST = re.compile(r"sqs\.([a-z0-9-]+)\.amazonaws\.com(\.cn)?")
_PER_CALL = 10
_COUNTS = [f"ApproximateNumberOfMessages{kind}" for kind in ("", "NotVisible", "Delayed")]
_PERMANENT = {
    "NonExistentQueue|QueueDoesNotExist": "input_not_found",
    "NoCredentials|AccessDenied|InvalidClientTokenId|SignatureDoesNotMatch": "storage_denied",
    "NoRegion": "input_invalid",
}


class SqsQueue(MessageQueue):
    """`sqs://NAME?region=REGION`, or a queue's URL. boto3 finds credentials, and the region of a name without one.

    A message's id is its deduplication id, else its MessageId. Dead letters go to the queue of --dead-letters, else to
    that of the queue's redrive policy.
    """

    def __init__(self, spec: InputSpec, options: RunOptions) -> None:
        super().__init__(spec, options)
        try:
            import boto3
            from botocore.config import Config
        except ImportError as error:
            raise package_missing(spec.shown, error, "boto3", "queues") from error
        self._lease = int(options.lease_seconds)
        parts = urlsplit(spec.address)
        aws = _AWS_HOST.fullmatch(parts.netloc)
        region = self.parameters(parts.query, "region").get("region")
        settings: dict[str, Any] = {"region_name": aws[1] if aws else region}
        if parts.scheme != "sqs" and aws is None:
            settings["endpoint_url"] = f"{parts.scheme}://{parts.netloc}"
        with self._errors():
            retries: Any = {"total_max_attempts": 8, "mode": "standard"}
            self._client: Any = boto3.client("sqs", config=Config(retries=retries), **settings)
            self._url = self._url_of(parts.netloc if parts.scheme == "sqs" else spec.address)
            there = self._client.get_queue_attributes(QueueUrl=self._url, AttributeNames=["All"])["Attributes"]
            policy = json.loads(there.get("RedrivePolicy") or '{"deadLetterTargetArn": ""}')
            dead_letters = options.dead_letters or policy["deadLetterTargetArn"].rpartition(":")[2]
            self._dead_letters = self._url_of(dead_letters) if dead_letters else None
        if self._dead_letters and urlsplit(self._dead_letters).path == urlsplit(self._url).path:
            raise self.own_dead_letters(dead_letters)
        self.fingerprint = f"queue:{fingerprint(there['QueueArn'])}"

    def receive(self, limit: int, seconds: float) -> Sequence[Message]:
        messages: list[Message] = []
        while len(messages) < limit:
            with self._errors():
                answer = self._client.receive_message(
                    QueueUrl=self._url,
                    MaxNumberOfMessages=min(_PER_CALL, limit - len(messages)),
                    WaitTimeSeconds=0 if messages else 1,
                    VisibilityTimeout=self._lease,
                    MessageSystemAttributeNames=["All"],
                )
            messages += map(_message, answer.get("Messages", ()))
            if not answer.get("Messages"):
                break
        return messages

    def extend(self, messages: Sequence[Message]) -> None:
        self._each(self._client.change_message_visibility_batch, messages, VisibilityTimeout=self._lease)

    def release(self, messages: Sequence[Message]) -> None:
        self._each(self._client.change_message_visibility_batch, messages, VisibilityTimeout=0)

    def settle_messages(self, recorded: Sequence[tuple[Message, RowStatus]]) -> None:
        if self._dead_letters is not None:
            letters = [_dead_letter(message) for message, status in recorded if status is RowStatus.DEAD]
            for failed in self._in_batches(self._client.send_message_batch, self._dead_letters, letters):
                reason = f"the queue {self._dead_letters} refuses a dead letter ({failed.get('Message', '')}); check it"
                raise BatchError(reason, "output_failed")
        self._each(self._client.delete_message_batch, [message for message, _ in recorded])

    def backlog(self) -> int:
        with self._errors():
            answer = self._client.get_queue_attributes(QueueUrl=self._url, AttributeNames=_COUNTS)
        return sum(int(answer["Attributes"][name]) for name in _COUNTS)

    def disconnect(self) -> None:
        self._client.close()

    def _each(self, call: Callable[..., Any], messages: Sequence[Message], **values: int) -> None:
        """Call it for messages. One whose handle is no longer valid comes again, as any other does."""
        entries = [{"ReceiptHandle": message.receipt["ReceiptHandle"], **values} for message in messages]
        list(self._in_batches(call, self._url, entries))

    def _in_batches(self, call: Callable[..., Any], url: str, entries: Sequence[dict[str, Any]]) -> Iterator[Any]:
        """Call it for ten entries at a time, and yield what failed."""
        for first in range(0, len(entries), _PER_CALL):
            some = enumerate(entries[first : first + _PER_CALL])
            with self._errors():
                answer = call(QueueUrl=url, Entries=[{"Id": str(number), **entry} for number, entry in some])
            yield from answer.get("Failed", ())

    def _url_of(self, name: str) -> str:
        return name if "://" in name else str(self._client.get_queue_url(QueueName=name)["QueueUrl"])

    @contextmanager
    def _errors(self) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except (BotoCoreError, ClientError) as error:
            name = str(error.response["Error"].get("Code")) if isinstance(error, ClientError) else type(error).__name__
            words = scrubbed(error, self._spec.address)
            raise BatchError(
                f"{self._spec.shown} can't be read ({words}); check the queue, that of dead letters, the region and the"
                " credentials, or try again later",
                next((code for names, code in _PERMANENT.items() if re.search(names, name)), "storage_unreachable"),
            ) from error


def _message(answer: dict[str, Any]) -> Message:
    attributes = answer["Attributes"]
    id = attributes.get("MessageDeduplicationId") or answer["MessageId"]
    deliveries, sent = int(attributes["ApproximateReceiveCount"]), int(attributes["SentTimestamp"]) / 1000
    return Message.of_json(id, answer["Body"], deliveries, sent, answer)


def _dead_letter(message: Message) -> dict[str, Any]:
    group = message.receipt["Attributes"].get("MessageGroupId")
    fifo = {} if group is None else {"MessageGroupId": group, "MessageDeduplicationId": message.id}
    return {"MessageBody": message.body, **fifo}
