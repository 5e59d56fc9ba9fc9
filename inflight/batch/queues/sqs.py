"""A queue of Amazon SQS."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

from inflight.batch.errors import BatchError, package_missing
from inflight.batch.job.rows import RowStatus
from inflight.batch.job.spec import InputSpec, RunOptions, fingerprint
from inflight.batch.queues.source import Message, MessageQueue
from inflight.batch.storage.secret_address import scrubbed

_AWS_HOST = re.compile(r"sqs\.([a-z0-9-]+)\.amazonaws\.com(\.cn)?")
_Entry = dict[str, Any]
_PER_CALL = 10
_COUNTS = [f"ApproximateNumberOfMessages{kind}" for kind in ("", "NotVisible", "Delayed")]
_PERMANENT = {"NonExistentQueue": "input_not_found", "QueueDoesNotExist": "input_not_found"}
_PERMANENT |= {"NoRegion": "input_invalid", "NoCredentials": "storage_denied", "AccessDenied": "storage_denied"}
_PERMANENT |= {"InvalidClientTokenId": "storage_denied", "SignatureDoesNotMatch": "storage_denied"}


class SqsQueue(MessageQueue):
    """`sqs://NAME?region=REGION`, or a queue's URL. boto3 finds credentials, and the region of a name without one.

    A message's id is its deduplication id, else its MessageId. Dead letters go to the queue of --dead-letters, else to
    that of the queue's redrive policy.
    """

    def __init__(self, spec: InputSpec, options: RunOptions) -> None:
        try:
            import boto3
            from botocore.config import Config
        except ImportError as error:
            raise package_missing(spec.shown, error, "boto3", "queues") from error
        self._spec, self._lease = spec, int(options.lease_seconds)
        parts = urlsplit(spec.address)
        aws = _AWS_HOST.fullmatch(parts.netloc)
        settings: dict[str, Any] = {"region_name": aws[1] if aws else parse_qs(parts.query).get("region", [None])[0]}
        if parts.scheme != "sqs" and aws is None:
            settings["endpoint_url"] = f"{parts.scheme}://{parts.netloc}"
        with self._errors():
            retries: Any = {"total_max_attempts": 8, "mode": "standard"}
            self._client: Any = boto3.client("sqs", config=Config(retries=retries), **settings)
            self._url = spec.address if parts.scheme != "sqs" else self._url_of(parts.netloc)
            there = self._client.get_queue_attributes(QueueUrl=self._url, AttributeNames=["All"])["Attributes"]
            self._dead_letters = self._dead_letter_queue(options.dead_letters, there)
        self.fingerprint = f"queue:{fingerprint(there['QueueArn'])}"

    def receive(self, limit: int, seconds: float) -> Sequence[Message]:
        messages: list[Message] = []
        with self._errors():
            while len(messages) < limit:
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
        self._make_visible_in(messages, self._lease)

    def release(self, messages: Sequence[Message]) -> None:
        self._make_visible_in(messages, 0)

    def settle(self, recorded: Sequence[tuple[Message, RowStatus]]) -> None:
        if self._dead_letters is not None:
            dead = [message for message, status in recorded if status is RowStatus.DEAD]
            self._in_batches(self._client.send_message_batch, self._dead_letters, dead, _dead_letter)
        messages = [message for message, _ in recorded]
        self._in_batches(self._client.delete_message_batch, self._url, messages, _handle)

    def backlog(self) -> int:
        with self._errors():
            answer = self._client.get_queue_attributes(QueueUrl=self._url, AttributeNames=_COUNTS)
        return sum(int(answer["Attributes"][name]) for name in _COUNTS)

    def close(self) -> None:
        self._client.close()

    def _make_visible_in(self, messages: Sequence[Message], seconds: int) -> None:
        call = self._client.change_message_visibility_batch
        self._in_batches(call, self._url, messages, lambda message: _handle(message) | {"VisibilityTimeout": seconds})

    def _in_batches(
        self,
        call: Callable[..., Any],
        url: str,
        messages: Sequence[Message],
        entry: Callable[[Message], _Entry],
    ) -> None:
        """Call it for ten messages at a time. One whose handle is no longer valid comes again, as any other does."""
        for first in range(0, len(messages), _PER_CALL):
            some = messages[first : first + _PER_CALL]
            with self._errors():
                answer = call(QueueUrl=url, Entries=[{"Id": str(at), **entry(each)} for at, each in enumerate(some)])
            if url == self._dead_letters and answer.get("Failed"):
                reason = answer["Failed"][0].get("Message", "")
                raise BatchError(f"the queue {url} refuses a dead letter ({reason}); check it", "output_failed")

    def _dead_letter_queue(self, named: str | None, attributes: dict[str, str]) -> str | None:
        if named is not None:
            return named if "://" in named else self._url_of(named)
        policy = json.loads(attributes.get("RedrivePolicy") or "{}")
        return self._url_of(policy["deadLetterTargetArn"].rsplit(":", 1)[-1]) if policy else None

    def _url_of(self, name: str) -> str:
        return str(self._client.get_queue_url(QueueName=name)["QueueUrl"])

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
                next((code for part, code in _PERMANENT.items() if part in name), "storage_unreachable"),
            ) from error


def _message(answer: dict[str, Any]) -> Message:
    attributes = answer["Attributes"]
    id = attributes.get("MessageDeduplicationId") or answer["MessageId"]
    deliveries, sent = int(attributes["ApproximateReceiveCount"]), int(attributes["SentTimestamp"]) / 1000
    return Message.of_json(id, answer["Body"], deliveries, sent, answer)


def _handle(message: Message) -> dict[str, Any]:
    return {"ReceiptHandle": message.receipt["ReceiptHandle"]}


def _dead_letter(message: Message) -> dict[str, Any]:
    group = message.receipt["Attributes"].get("MessageGroupId")
    fifo = {} if group is None else {"MessageGroupId": group, "MessageDeduplicationId": message.id}
    return {"MessageBody": message.receipt["Body"], **fifo}
