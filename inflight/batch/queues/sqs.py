"""A queue of Amazon SQS."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from inflight.batch.errors import BatchError, package_missing
from inflight.batch.job.rows import RowStatus
from inflight.batch.job.spec import InputSpec, RunOptions, fingerprint
from inflight.batch.queues.source import Message, MessageQueue
from inflight.batch.storage.secret_address import scrubbed

_AWS_HOST = re.compile(r"sqs\.([a-z0-9-]+)\.amazonaws\.com(\.cn)?")
_PER_CALL = 10
_SECONDS = 5.0
"""Longest wait for a connection, and for an answer."""
_COUNTS = [f"ApproximateNumberOfMessages{kind}" for kind in ("", "NotVisible", "Delayed")]
_PERMANENT = {
    "NonExistentQueue|QueueDoesNotExist": "input_not_found",
    "(No|Partial)Credentials|ProfileNotFound|AccessDenied|InvalidClientTokenId|SignatureDoesNotMatch": "storage_denied",
    "NoRegion": "input_invalid",
}
_POINTER = re.compile(r'\["(software\.amazon\.payloadoffloading|com\.amazon\.sqs\.javamessaging)\.\w*S3Pointer"')
"""https://github.com/awslabs/payload-offloading-java-common-lib-for-aws"""


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

        def client(attempts: int) -> Any:
            retries: Any = {"total_max_attempts": attempts, "mode": "standard"}
            config = Config(retries=retries, connect_timeout=_SECONDS, read_timeout=_SECONDS)
            return boto3.client("sqs", config=config, **settings)

        with self._errors():
            self._client, self._hasty = client(8), client(2)
            self._url = self._url_of(parts.netloc if parts.scheme == "sqs" else spec.address.partition("?")[0])
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
                    MessageAttributeNames=["All"],
                )
            messages += map(_message, answer.get("Messages", ()))
            if not answer.get("Messages"):
                break
        return messages

    def extend(self, messages: Sequence[Message]) -> None:
        self._each(self._hasty.change_message_visibility_batch, messages, VisibilityTimeout=self._lease)

    def release(self, messages: Sequence[Message]) -> None:
        self._each(self._hasty.change_message_visibility_batch, messages, VisibilityTimeout=0)

    def settle_messages(self, recorded: Sequence[tuple[Message, RowStatus]]) -> None:
        for message, status in recorded:
            if status is RowStatus.DEAD and self._dead_letters is not None:
                with self._errors():  # one at a time: ten may be longer than a call may be
                    self._client.send_message(QueueUrl=self._dead_letters, **self._dead_letter(message))
        self._each(self._client.delete_message_batch, [message for message, _ in recorded])

    def backlog(self) -> int:
        with self._errors():
            answer = self._client.get_queue_attributes(QueueUrl=self._url, AttributeNames=_COUNTS)
        return sum(int(answer["Attributes"][name]) for name in _COUNTS)

    def disconnect(self) -> None:
        self._client.close()
        self._hasty.close()

    def _each(self, call: Callable[..., Any], messages: Sequence[Message], **values: int) -> None:
        """Call it for ten messages at a time. One whose handle is no longer valid comes again, as any other does."""
        for first in range(0, len(messages), _PER_CALL):
            handles = [message.receipt["ReceiptHandle"] for message in messages[first : first + _PER_CALL]]
            entries = [{"Id": str(number), "ReceiptHandle": each, **values} for number, each in enumerate(handles)]
            with self._errors():
                call(QueueUrl=self._url, Entries=entries)

    def _dead_letter(self, message: Message) -> dict[str, Any]:
        group, attributes = (
            message.receipt["Attributes"].get("MessageGroupId"),
            message.receipt.get("MessageAttributes"),
        )
        fifo = {"MessageGroupId": group or message.id, "MessageDeduplicationId": message.id}
        is_fifo = str(self._dead_letters).endswith(".fifo")
        return {"MessageBody": message.body, "MessageAttributes": attributes or {}, **(fifo if is_fifo else {})}

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
    message = Message.of_json(id, answer["Body"], deliveries, sent, answer)
    if _POINTER.match(answer["Body"]):
        return replace(message, error="the message is a pointer to S3; send the JSON object itself")
    return message
