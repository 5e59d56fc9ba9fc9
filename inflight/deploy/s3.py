"""A repository on S3: put there object by object, each of them checked, and its card last.

A bucket can't exchange two repositories in one step, as a directory can. So before anything is changed there, the old
card goes and a mark says that somebody is at it; whoever reads meanwhile, or after a copy that was killed, is told so.
The next copy sends what is missing. Nothing is removed but what the old card, or the mark of a copy that was killed,
lists.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inflight.deploy import card as cards
from inflight.deploy import s3_mark
from inflight.deploy.card import Card
from inflight.deploy.errors import DeployError
from inflight.deploy.s3_address import S3Address
from inflight.deploy.s3_mark import Mark

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

PART_BYTES = 64 << 20
"""Larger files are sent in parts of this size."""

Objects = dict[str, tuple[str, int]]
"""Tag and size of objects, by their names in the repository."""

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
        """What stands there, whole. DeployError `engine_not_found` for nothing, `engine_damaged` for a half copy.

        An object whose tag is not the one that the card noted (a tool has copied it, or another was put there) is read
        and hashed; the small ones first, and up to 2 GiB of them, as in a directory.
        """
        with self._said(self.address):
            there = self._objects()
            if s3_mark.FILE_NAME in there:
                raise DeployError(
                    f"{self.address} is being written, or was left half written; wait, or assemble it again.",
                    "engine_damaged",
                )
            if cards.FILE_NAME not in there:
                raise DeployError(
                    f"{self.address} holds no {cards.FILE_NAME}, so it is no repository of inflight; write one with"
                    " `inflight assemble`.",
                    "engine_not_found",
                )
            card = Card.parse(self.read(cards.FILE_NAME), f"{self.address}/{cards.FILE_NAME}")
            hashed = 0
            for name, file in sorted(card.files.items(), key=lambda one: one[1].bytes):
                tag, size = there.get(name, ("", -1))
                if size != file.bytes:
                    raise self._damaged(name, "is missing or has another size than")
                if tag == card.tags.get(name):
                    continue
                hashed += size
                if hashed <= cards.HASHED_BYTES and self._hash(name) != file.sha256:
                    raise self._damaged(name, "has another content than")
        return card.model_copy(update={"tags": {}})

    def refuse_foreign(self) -> None:
        """Raise DeployError `output_exists` where something else stands than a repository of ours, and inside one."""
        with self._said(self.address):
            there = self._objects()
            self._refuse_strangers(there, self._ours(there))
        self._refuse_inside()

    def upload(self, directory: Path, card: Card, report: Callable[[str], None], *, force: bool = False) -> int:
        """Make the bucket hold what `directory` does; returns how many objects had to be sent.

        Objects that are there already, with their content, are not sent again, unless `force`. Raises
        `storage_unreachable` for one that does not arrive whole, and `output_exists` as `refuse_foreign` does and where
        somebody else writes there at the same time.
        """
        self._refuse_inside()
        with self._said(self.address):
            there = self._objects()
            ours = self._ours(there)
            self._refuse_strangers(there, ours)
            missing = [name for name in card.files if force or there.get(name) != _mark_of(directory / name)]
            left = [name for name in there if name in ours - {*card.files, cards.FILE_NAME, s3_mark.FILE_NAME}]
            tags = {name: there[name][0] for name in card.files if name not in missing}
            if not missing and not left and s3_mark.FILE_NAME not in there and self._holds(there, card, tags):
                return 0
            mark = Mark(frozenset({*ours, *card.files}))
            self._put(s3_mark.FILE_NAME, mark.content())
            if cards.FILE_NAME in there:
                self._delete([cards.FILE_NAME])
            for name in missing:
                report(f"Sending {name} ({card.files[name].bytes / 1e6:,.1f} MB)")
                tags[name] = self._send(directory / name, name)
            self._delete(left)
            self._refuse_others(mark, {name: (tags[name], file.bytes) for name, file in card.files.items()})
            self._put(cards.FILE_NAME, card.model_copy(update={"tags": tags}).content())
            self._delete([s3_mark.FILE_NAME])
        return len({*missing, cards.FILE_NAME})

    def download(self, into: Path, card: Card, report: Callable[[str], None]) -> None:
        """Copy the repository to the directory `into`."""
        with self._said(self.address):
            for name in card.files:
                target = cards.place_in(into, name)
                report(f"Fetching {name}")
                self._client.download_file(self.address.bucket, self.address.key(name), str(target))
        card.write(into)

    def read(self, name: str) -> bytes:
        """The content of a small file."""
        with self._said(self.address):
            return self._client.get_object(Bucket=self.address.bucket, Key=self.address.key(name))["Body"].read()

    def _ours(self, there: Objects) -> frozenset[str]:
        """The objects that make up the repository that stands there, whole or half."""
        names = {cards.FILE_NAME, s3_mark.FILE_NAME} & set(there)
        if cards.FILE_NAME in names:
            names |= cards.listed(self.read(cards.FILE_NAME))
        if s3_mark.FILE_NAME in names:
            names |= Mark.parse(self.read(s3_mark.FILE_NAME)).names
        return frozenset(names)

    def _refuse_strangers(self, there: Objects, ours: frozenset[str]) -> None:
        strangers = sorted(set(there) - ours)
        if strangers and not ours:
            raise DeployError(
                f"{self.address} holds something that is no repository of inflight; choose another --out or remove it.",
                "output_exists",
            )
        if strangers:
            raise DeployError(
                f"{self.address} holds {strangers[0]}, which is not of the repository there; choose another --out, or"
                " take it away.",
                "output_exists",
            )

    def _refuse_inside(self) -> None:
        """Whoever replaces a repository must not come upon one inside it."""
        for place in self.address.above():
            key = place.key(cards.FILE_NAME)
            try:
                with self._said(place):
                    found = self._client.list_objects_v2(Bucket=place.bucket, Prefix=key, MaxKeys=1)
            except DeployError as error:
                if error.code != "storage_denied":
                    raise
                continue  # who may write here need not be one who may look there
            if any(one["Key"] == key for one in found.get("Contents", [])):
                raise DeployError(
                    f"{self.address} lies inside the repository at {place}; choose another --out.", "output_exists"
                )

    def _refuse_others(self, mark: Mark, expected: Objects) -> None:
        """Before the card is put there: all is as it was sent, and nobody else has begun meanwhile."""
        there = self._objects()
        alone = s3_mark.FILE_NAME in there and Mark.parse(self.read(s3_mark.FILE_NAME)).owner == mark.owner
        if not alone or any(there.get(name) != found for name, found in expected.items()):
            raise DeployError(
                f"{self.address} was written to by somebody else at the same time; assemble it again, one at a time.",
                "output_exists",
            )

    def _holds(self, there: Objects, card: Card, tags: dict[str, str]) -> bool:
        expected = card.model_copy(update={"tags": tags}).content()
        return cards.FILE_NAME in there and self.read(cards.FILE_NAME) == expected

    def _send(self, path: Path, name: str) -> str:
        """Send a file, and look whether it arrived whole; again if it did not. Returns its tag."""
        expected = _mark_of(path)
        for _ in range(_ATTEMPTS):
            self._client.upload_file(str(path), self.address.bucket, self.address.key(name), Config=_parts())
            found = self._client.head_object(Bucket=self.address.bucket, Key=self.address.key(name))
            tag = found["ETag"].strip('"')
            # Encrypted with keys of one's own, an object's tag is no hash of its content.
            opaque = found.get("ServerSideEncryption", "").startswith("aws:kms") or found.get("SSECustomerAlgorithm")
            if (expected[0] if opaque else tag, found["ContentLength"]) == expected:
                return tag
        raise DeployError(
            f"{self.address}/{name} did not arrive whole, {_ATTEMPTS} times in a row; try again later.",
            "storage_unreachable",
        )

    def _put(self, name: str, content: bytes) -> None:
        self._client.put_object(Bucket=self.address.bucket, Key=self.address.key(name), Body=content)

    def _objects(self) -> Objects:
        """Every object below the address, but for those that a console makes to show a folder."""
        start = f"{self.address.prefix}/" if self.address.prefix else ""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.address.bucket, Prefix=start)
        return {
            found["Key"][len(start) :]: (found["ETag"].strip('"'), found["Size"])
            for page in pages
            for found in page.get("Contents", [])
            if found["Size"] or not found["Key"].endswith("/")
        }

    def _hash(self, name: str) -> str:
        digest = hashlib.sha256()
        found = self._client.get_object(Bucket=self.address.bucket, Key=self.address.key(name))
        for part in found["Body"].iter_chunks(1 << 20):
            digest.update(part)
        return digest.hexdigest()

    def _damaged(self, name: str, what: str) -> DeployError:
        return DeployError(
            f"{self.address}/{name} {what} {cards.FILE_NAME} says; assemble the repository again.", "engine_damaged"
        )

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
