"""A repository on S3: uploaded object by object, each one verified, with the manifest last.

A bucket can't swap two repositories in one step, as a directory can. So the old manifest is first replaced by a marker
of an active writer; readers get an error meanwhile, and after an upload was killed. The next upload sends what is
missing. It removes only what the old manifest, or the marker of a killed upload, lists.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inflight.deploy.errors import DeployError
from inflight.deploy.publish.s3_address import S3Address
from inflight.deploy.repository import manifest as cards
from inflight.deploy.repository.manifest import RepositoryManifest

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

MARKER_FILE = "inflight.unfinished"
PART_BYTES = 64 << 20
"""Larger files are sent in parts of this size."""

Objects = dict[str, tuple[str, int]]
"""Tag and size of objects, by their names in the repository."""

_MAX_UPLOAD_ATTEMPTS = 3
_MAX_DELETE_BATCH = 1000


@dataclass(frozen=True)
class UploadMarker:
    """`names` are all objects of the repository before and after the upload; `owner` identifies one writer."""

    names: frozenset[str]
    owner: str = field(default_factory=lambda: secrets.token_hex(8))

    @classmethod
    def parse(cls, content: bytes) -> UploadMarker:
        """Parse a marker; an unreadable one lists nothing."""
        try:
            marker = json.loads(content)
            return cls(frozenset(map(str, marker["names"])), str(marker["owner"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            return cls(frozenset(), "")

    def content(self) -> bytes:
        return json.dumps({"owner": self.owner, "names": sorted(self.names)}).encode()


class S3Repository:
    """A repository at an address. All methods raise DeployError `storage_*` if S3 refuses or is unreachable."""

    def __init__(self, address: S3Address) -> None:
        self.address = address
        try:
            from inflight.deploy.publish.s3_errors import map_s3_errors
        except ModuleNotFoundError as error:
            raise DeployError(
                f"{address} needs the package boto3; install inflight with its extra, [s3].", "package_missing"
            ) from error
        self._map_errors = map_s3_errors
        with self._map_errors(address):
            self._client = _client(address)

    def read_manifest(self) -> RepositoryManifest:
        """Read and verify the manifest. Raises DeployError `engine_not_found` or `engine_damaged`.

        An object whose tag differs from the manifest's (a tool copied or replaced it) is read and hashed, the small
        ones first, up to 2 GiB in total, as in a directory.
        """
        with self._map_errors(self.address):
            there = self._objects()
            if MARKER_FILE in there:
                raise DeployError(
                    f"{self.address} is being written, or was left half written; wait, or assemble it again.",
                    "engine_damaged",
                )
            if cards.MANIFEST_FILE not in there:
                raise DeployError(
                    f"{self.address} holds no {cards.MANIFEST_FILE}, so it is not a repository of inflight; write one"
                    " with `inflight assemble`.",
                    "engine_not_found",
                )
            card = RepositoryManifest.parse(self.read(cards.MANIFEST_FILE), f"{self.address}/{cards.MANIFEST_FILE}")
            hashed = 0
            for name, file in sorted(card.files.items(), key=lambda item: item[1].bytes):
                tag, size = there.get(name, ("", -1))
                if size != file.bytes:
                    raise self._damaged(name, "is missing or has another size than")
                if tag == card.tags.get(name):
                    continue
                hashed += size
                if hashed <= cards.MAX_HASHED_BYTES and self._hash(name) != file.sha256:
                    raise self._damaged(name, "has another content than")
        return card.model_copy(update={"tags": {}})

    def check_replaceable(self) -> None:
        """Raise DeployError `output_exists` if the place or its parents hold anything but a repository to replace."""
        with self._map_errors(self.address):
            there = self._objects()
            self._check_no_unlisted(there, self._repository_objects(there))
        self._check_not_nested()

    def upload(
        self, directory: Path, manifest: RepositoryManifest, on_message: Callable[[str], None], *, force: bool = False
    ) -> int:
        """Make the bucket match `directory`; return how many objects were sent.

        Objects that are there with the same content are not sent again, unless `force`. Raises `storage_unreachable`
        for one that does not arrive intact, and `output_exists` as `check_replaceable` does and if another process
        writes at the same time.
        """
        self._check_not_nested()
        with self._map_errors(self.address):
            there = self._objects()
            ours = self._repository_objects(there)
            self._check_no_unlisted(there, ours)
            missing = [name for name in manifest.files if force or there.get(name) != _etag_and_size(directory / name)]
            left = [name for name in there if name in ours - {*manifest.files, cards.MANIFEST_FILE, MARKER_FILE}]
            tags = {name: there[name][0] for name in manifest.files if name not in missing}
            if not missing and not left and MARKER_FILE not in there and self._is_current(there, manifest, tags):
                return 0
            mark = UploadMarker(frozenset({*ours, *manifest.files}))
            self._put(MARKER_FILE, mark.content())
            if cards.MANIFEST_FILE in there:
                self._delete([cards.MANIFEST_FILE])
            for name in missing:
                on_message(f"Sending {name} ({manifest.files[name].bytes / 1e6:,.1f} MB)")
                tags[name] = self._upload_file(directory / name, name)
            self._delete(left)
            self._check_no_other_writer(mark, {name: (tags[name], file.bytes) for name, file in manifest.files.items()})
            self._put(cards.MANIFEST_FILE, manifest.model_copy(update={"tags": tags}).content())
            self._delete([MARKER_FILE])
        return len({*missing, cards.MANIFEST_FILE})

    def download(self, into: Path, manifest: RepositoryManifest, on_message: Callable[[str], None]) -> None:
        """Copy the repository to the directory `into`."""
        with self._map_errors(self.address):
            for name in manifest.files:
                target = cards.path_inside(into, name)
                on_message(f"Fetching {name}")
                self._client.download_file(self.address.bucket, self.address.key(name), str(target))
        manifest.write(into)

    def read(self, name: str) -> bytes:
        """Return the content of a small file."""
        with self._map_errors(self.address):
            return self._client.get_object(Bucket=self.address.bucket, Key=self.address.key(name))["Body"].read()

    def _repository_objects(self, there: Objects) -> frozenset[str]:
        """Return the objects of the existing repository, complete or not."""
        names = {cards.MANIFEST_FILE, MARKER_FILE} & set(there)
        if cards.MANIFEST_FILE in names:
            names |= cards.listed_files(self.read(cards.MANIFEST_FILE))
        if MARKER_FILE in names:
            names |= UploadMarker.parse(self.read(MARKER_FILE)).names
        return frozenset(names)

    def _check_no_unlisted(self, there: Objects, listed: frozenset[str]) -> None:
        foreign = sorted(set(there) - listed)
        if foreign and not listed:
            raise DeployError(
                f"{self.address} holds something other than a repository of inflight; choose another --out or"
                " remove it.",
                "output_exists",
            )
        if foreign:
            raise DeployError(
                f"{self.address} holds {foreign[0]}, which is not part of the repository there; choose another --out,"
                " or remove it.",
                "output_exists",
            )

    def _check_not_nested(self) -> None:
        """Refuse to replace a prefix that contains a repository."""
        for place in self.address.parents():
            key = place.key(cards.MANIFEST_FILE)
            try:
                with self._map_errors(place):
                    listing = self._client.list_objects_v2(Bucket=place.bucket, Prefix=key, MaxKeys=1)
            except DeployError as error:
                if error.code != "storage_denied":
                    raise
                continue  # permission to write here does not imply permission to read there
            if any(entry["Key"] == key for entry in listing.get("Contents", [])):
                raise DeployError(
                    f"{self.address} is inside the repository at {place}; choose another --out.", "output_exists"
                )

    def _check_no_other_writer(self, marker: UploadMarker, expected: Objects) -> None:
        """Check before writing the manifest that all objects are as sent and no other writer has started."""
        there = self._objects()
        alone = MARKER_FILE in there and UploadMarker.parse(self.read(MARKER_FILE)).owner == marker.owner
        if not alone or any(there.get(name) != tag_and_size for name, tag_and_size in expected.items()):
            raise DeployError(
                f"{self.address} was written to by another process at the same time; assemble it again, one at a time.",
                "output_exists",
            )

    def _is_current(self, there: Objects, manifest: RepositoryManifest, tags: dict[str, str]) -> bool:
        expected = manifest.model_copy(update={"tags": tags}).content()
        return cards.MANIFEST_FILE in there and self.read(cards.MANIFEST_FILE) == expected

    def _upload_file(self, path: Path, name: str) -> str:
        """Send a file and verify it, with further attempts if needed; return its tag."""
        expected = _etag_and_size(path)
        for _ in range(_MAX_UPLOAD_ATTEMPTS):
            self._client.upload_file(str(path), self.address.bucket, self.address.key(name), Config=_transfer_config())
            head = self._client.head_object(Bucket=self.address.bucket, Key=self.address.key(name))
            tag = head["ETag"].strip('"')
            # With customer-managed keys, an object's tag is not a hash of its content.
            opaque = head.get("ServerSideEncryption", "").startswith("aws:kms") or head.get("SSECustomerAlgorithm")
            if (expected[0] if opaque else tag, head["ContentLength"]) == expected:
                return tag
        raise DeployError(
            f"{self.address}/{name} did not arrive whole, {_MAX_UPLOAD_ATTEMPTS} times in a row; try again later.",
            "storage_unreachable",
        )

    def _put(self, name: str, content: bytes) -> None:
        self._client.put_object(Bucket=self.address.bucket, Key=self.address.key(name), Body=content)

    def _objects(self) -> Objects:
        """Return every object below the address, except those that a console creates to show a folder."""
        start = f"{self.address.prefix}/" if self.address.prefix else ""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.address.bucket, Prefix=start)
        return {
            entry["Key"][len(start) :]: (entry["ETag"].strip('"'), entry["Size"])
            for page in pages
            for entry in page.get("Contents", [])
            if entry["Size"] or not entry["Key"].endswith("/")
        }

    def _hash(self, name: str) -> str:
        digest = hashlib.sha256()
        response = self._client.get_object(Bucket=self.address.bucket, Key=self.address.key(name))
        for part in response["Body"].iter_chunks(1 << 20):
            digest.update(part)
        return digest.hexdigest()

    def _damaged(self, name: str, what: str) -> DeployError:
        return DeployError(
            f"{self.address}/{name} {what} {cards.MANIFEST_FILE} says; assemble the repository again.", "engine_damaged"
        )

    def _delete(self, names: Iterable[str]) -> None:
        keys = [self.address.key(name) for name in names]
        for start in range(0, len(keys), _MAX_DELETE_BATCH):
            batch = [{"Key": key} for key in keys[start : start + _MAX_DELETE_BATCH]]
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


def _transfer_config() -> Any:
    from boto3.s3.transfer import TransferConfig

    return TransferConfig(multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES)


def _etag_and_size(path: Path) -> tuple[str, int]:
    """Return S3's tag of a file, and its size: the MD5 of its content, or of the MD5s of its parts."""
    digests, size = [], path.stat().st_size
    with path.open("rb") as file:
        while part := file.read(PART_BYTES):
            digests.append(hashlib.md5(part, usedforsecurity=False))
    if size < PART_BYTES:
        return (digests[0] if digests else hashlib.md5(b"", usedforsecurity=False)).hexdigest(), size
    whole = hashlib.md5(b"".join(digest.digest() for digest in digests), usedforsecurity=False)
    return f"{whole.hexdigest()}-{len(digests)}", size
