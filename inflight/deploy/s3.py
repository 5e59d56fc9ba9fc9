"""A repository on S3: put there object by object, each of them checked, and its card last.

A bucket can't exchange two repositories in one step, as a directory can. So before anything is changed there, the old
card goes and a mark says that somebody is at it; whoever reads meanwhile, or after a copy that was killed, is told so.
The next copy sends what is missing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inflight.deploy import card as cards
from inflight.deploy.card import Card
from inflight.deploy.errors import DeployError
from inflight.deploy.s3_address import S3Address

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

MARK = "inflight.unfinished"
"""The object that stands while a repository is being written."""

PART_BYTES = 64 << 20
"""Larger files are sent in parts of this size."""

_ATTEMPTS = 3
_DELETED_AT_ONCE = 1000


class S3Repository:
    """A repository at an address. Everything raises DeployError `storage_*` where S3 refuses or is away."""

    def __init__(self, address: S3Address) -> None:
        self.address = address
        try:
            from inflight.deploy.s3_errors import in_a_sentence
        except ModuleNotFoundError as error:
            raise DeployError(
                f"{address} needs the package boto3; install inflight with its extra, [s3].", "package_missing"
            ) from error
        self._said = in_a_sentence
        with self._said(address):
            self._client = _client(address)

    def card(self) -> Card:
        """What stands there. DeployError `engine_not_found` for nothing, `engine_damaged` for a half copy."""
        with self._said(self.address):
            sizes = self._sizes()
            if MARK in sizes:
                raise DeployError(
                    f"{self.address} is being written, or was left half written; wait, or assemble it again.",
                    "engine_damaged",
                )
            if cards.FILE_NAME not in sizes:
                raise DeployError(
                    f"{self.address} holds no {cards.FILE_NAME}, so it is no repository of inflight; write one with"
                    " `inflight assemble`.",
                    "engine_not_found",
                )
            card = Card.parse(self._read(cards.FILE_NAME), f"{self.address}/{cards.FILE_NAME}")
        for name, file in card.files.items():
            if sizes.get(name, ("", -1))[1] != file.bytes:
                raise DeployError(
                    f"{self.address}/{name} is missing or has another size than {cards.FILE_NAME} says; assemble the"
                    " repository again.",
                    "engine_damaged",
                )
        return card

    def refuse_foreign(self) -> None:
        """Raise DeployError `output_exists` where something stands that is no repository of ours."""
        with self._said(self.address):
            names = self._sizes()
        if names and MARK not in names and cards.FILE_NAME not in names:
            raise DeployError(
                f"{self.address} holds something that is no repository of inflight; choose another --out or remove it.",
                "output_exists",
            )

    def upload(self, directory: Path, card: Card, report: Callable[[str], None], *, force: bool = False) -> int:
        """Make the bucket hold what `directory` does; returns how many objects had to be sent.

        Objects that are there already, with their content, are not sent again, unless `force`. Raises
        `storage_unreachable` for one that does not arrive whole.
        """
        self.refuse_foreign()
        with self._said(self.address):
            there = self._sizes()
            wanted = [*card.files, cards.FILE_NAME]
            missing = [name for name in wanted if force or there.get(name) != _mark_of(directory / name)]
            strangers = [name for name in there if name not in wanted and name != MARK]
            if not missing and not strangers and MARK not in there:
                return 0
            self._client.put_object(Bucket=self.address.bucket, Key=self.address.key(MARK), Body=b"")
            if cards.FILE_NAME in there:
                self._delete([cards.FILE_NAME])
            for name in card.files:
                if name in missing:
                    report(f"Sending {name} ({card.files[name].bytes / 1e6:,.1f} MB)")
                    self._send(directory / name, name)
            self._delete(strangers)
            self._send(directory / cards.FILE_NAME, cards.FILE_NAME)
            self._delete([MARK])
        return len({*missing, cards.FILE_NAME})

    def download(self, into: Path, card: Card, report: Callable[[str], None]) -> None:
        """Copy the repository to the directory `into`."""
        with self._said(self.address):
            for name in [*card.files, cards.FILE_NAME]:
                target = into / name
                target.parent.mkdir(parents=True, exist_ok=True)
                report(f"Fetching {name}")
                self._client.download_file(self.address.bucket, self.address.key(name), str(target))

    def _send(self, path: Path, name: str) -> None:
        """Send a file, and look whether it arrived whole; again if it did not."""
        expected = _mark_of(path)
        for _ in range(_ATTEMPTS):
            self._client.upload_file(str(path), self.address.bucket, self.address.key(name), Config=_parts())
            found = self._client.head_object(Bucket=self.address.bucket, Key=self.address.key(name))
            # Encrypted with keys of one's own, an object's tag is no hash of its content.
            opaque = found.get("ServerSideEncryption", "").startswith("aws:kms") or found.get("SSECustomerAlgorithm")
            tag = expected[0] if opaque else found["ETag"].strip('"')
            if (tag, found["ContentLength"]) == expected:
                return
        raise DeployError(
            f"{self.address}/{name} did not arrive whole, {_ATTEMPTS} times in a row; try again later.",
            "storage_unreachable",
        )

    def _sizes(self) -> dict[str, tuple[str, int]]:
        """Tag and size of every object of the repository, by its name."""
        start = f"{self.address.prefix}/" if self.address.prefix else ""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.address.bucket, Prefix=start)
        return {
            found["Key"][len(start) :]: (found["ETag"].strip('"'), found["Size"])
            for page in pages
            for found in page.get("Contents", [])
        }

    def _read(self, name: str) -> bytes:
        return self._client.get_object(Bucket=self.address.bucket, Key=self.address.key(name))["Body"].read()

    def _delete(self, names: Iterable[str]) -> None:
        keys = [self.address.key(name) for name in names]
        for start in range(0, len(keys), _DELETED_AT_ONCE):
            batch = [{"Key": key} for key in keys[start : start + _DELETED_AT_ONCE]]
            self._client.delete_objects(Bucket=self.address.bucket, Delete={"Objects": batch, "Quiet": True})  # type: ignore[typeddict-item]


def _client(address: S3Address) -> S3Client:
    import boto3
    from botocore.config import Config

    config = Config(
        connect_timeout=10,
        read_timeout=60,
        retries={"mode": "standard", "max_attempts": 4},
        s3={"addressing_style": "path" if address.endpoint else "auto"},
    )
    client: S3Client = boto3.client("s3", endpoint_url=address.endpoint, config=config)
    return client


def _parts() -> Any:
    from boto3.s3.transfer import TransferConfig

    return TransferConfig(multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES)


def _mark_of(path: Path) -> tuple[str, int]:
    """The tag that S3 gives to a file, and its size: the MD5 of its content, or of the MD5s of its parts."""
    digests, size = [], path.stat().st_size
    with path.open("rb") as file:
        while part := file.read(PART_BYTES):
            digests.append(hashlib.md5(part, usedforsecurity=False))
    if size < PART_BYTES:
        return (digests[0] if digests else hashlib.md5(b"", usedforsecurity=False)).hexdigest(), size
    whole = hashlib.md5(b"".join(digest.digest() for digest in digests), usedforsecurity=False)
    return f"{whole.hexdigest()}-{len(digests)}", size
