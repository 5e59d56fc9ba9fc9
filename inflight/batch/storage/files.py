"""Files by address: a path on this machine, or any address of fsspec (s3://, gs://, https://, ...)."""

from __future__ import annotations

import errno
import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from inflight.batch.errors import BatchError, package_missing
from inflight.batch.storage.addresses import is_local, local_path
from inflight.batch.storage.secret_address import expand_variables, masked, scrubbed
from inflight.batch.storage.streams import BUFFER, compression_of, open_buffered, open_compressed, skip_bytes
from inflight.common.atomic_files import DISK_FULL_ERRORS, make_directory, sync

_ENDPOINTED = re.compile(r"s3://(https?://[^/]+)/(.+)", re.IGNORECASE)
"""A custom S3 endpoint in the address, as in Triton and `inflight assemble`."""
_BLOCK = 4 << 20
_UPLOAD_PART_BYTES = 16 << 20
"""Bytes per part of an upload; some parts are in memory. S3 allows 10,000 parts: 160 GB."""
_HASHED_BYTES = 64 << 10


class Reading(NamedTuple):
    """An open file: its `inside`, decompressed, and the raw file (the same if it is not compressed)."""

    content: IO[bytes]
    raw: IO[bytes]


@dataclass(frozen=True)
class StoredFile:
    """A file that may exist. `absent` is the error code if it should exist but does not.

    Everything raises BatchError: that code, `storage_denied`, `storage_not_found`, `storage_unreachable`,
    `package_missing` and, for writes, `disk_full` and `output_unwritable`.
    """

    address: str
    missing_code: str = "input_not_found"

    @property
    def shown(self) -> str:
        """The address for messages, without secrets."""
        return masked(self.address)

    @property
    def is_local(self) -> bool:
        return is_local(self.address)

    @property
    def compression(self) -> str | None:
        """The compression by the address's suffix: gzip, bz2, xz, zstd."""
        return compression_of(self.address)

    @property
    def suffix(self) -> str:
        """The suffix of the content in lower case: `.jsonl` for `rows.jsonl.gz`."""
        name = self.address.partition("?")[0] if not self.is_local else self.address
        return Path(name.removesuffix(Path(name).suffix) if self.compression else name).suffix.lower()

    def size(self) -> int | None:
        """Return the stored size in bytes; None if a storage does not report it. Raises BatchError if the file is
        missing."""
        size = self._info().get("size")
        return size if isinstance(size, int) else None

    def exists(self) -> bool:
        with self.map_errors():
            return bool(self.fs.exists(self.path))

    def remove(self) -> None:
        """Delete the file if it exists."""
        with self.map_errors():
            if self.fs.exists(self.path):
                self.fs.rm_file(self.path)
                if self.is_local:
                    sync(local_path(self.address).parent)

    def fingerprint(self) -> str:
        """Return a value that is the same while the file is unchanged: its size, a hash of its start and end, and a
        storage's tag."""
        info = self._info()
        size = info.get("size")
        digest = hashlib.sha256(f"{size} {'' if self.is_local else _etag(info)} ".encode())
        with self.map_errors(), self._open_raw() as file:
            digest.update(file.read(_HASHED_BYTES))
            if isinstance(size, int) and size > 2 * _HASHED_BYTES and file.seekable():
                file.seek(size - _HASHED_BYTES)
                digest.update(file.read(_HASHED_BYTES))
        return f"file:{digest.hexdigest()[:32]}"

    @contextmanager
    def reading(self, offset: int = 0) -> Iterator[Reading]:
        """Yield the decompressed content from this byte on. Read errors are BatchErrors too."""
        with self.map_errors(), self._open_raw() as raw, open_compressed(raw, self.compression, self.shown) as file:
            if offset and self.compression is None and raw.seekable():
                raw.seek(offset)
            elif offset:
                skip_bytes(file, offset)
            yield Reading(file, raw)

    @contextmanager
    def open_seekable(self) -> Iterator[IO[bytes]]:
        """Yield the stored file for random access. Raises BatchError if a storage can only stream."""
        with self.map_errors(), self._open_raw() as file:
            if not file.seekable():
                raise BatchError(
                    f"{self.shown} can only be read sequentially; copy it to a disk first", "input_invalid"
                )
            yield file

    @contextmanager
    def writing(self) -> Iterator[IO[bytes]]:
        """Yield a new file, compressed by its suffix. On object stores an exception inside leaves no file."""
        with self.map_errors(writing=True):
            if self.is_local:
                make_directory(local_path(self.address).parent)
            raw = self._open_new()
            with _discard_on_error(raw), open_compressed(raw, self.compression, self.shown, write=True) as file:
                yield file

    @contextmanager
    def map_errors(self, writing: bool = False) -> Iterator[None]:
        """Convert errors in the block to BatchError."""
        try:
            yield
        except BatchError:
            raise
        except FileNotFoundError as error:
            raise self._missing_error(error) from error
        except IsADirectoryError as error:
            raise BatchError(f"{self.shown} is a directory; name a file in it", self.missing_code) from error
        except (NotADirectoryError, FileExistsError) as error:  # a component of its path is a file
            raise BatchError(
                f"{self.shown} is not a valid path: {self._error_text(error)}; check the path", self.missing_code
            ) from error
        except PermissionError as error:
            if self.is_local:
                code = "output_unwritable" if writing else "storage_denied"
                raise BatchError(f"{self.shown}: {self._error_text(error)}; check its permissions", code) from error
            raise BatchError(
                f"{self.shown} refuses access ({self._error_text(error)}); {_ACCESS}", "storage_denied"
            ) from error
        except OSError as error:
            if error.errno in DISK_FULL_ERRORS:
                raise BatchError(
                    f"{self.shown} can't be written: {self._error_text(error)}; free disk space", "disk_full"
                ) from error
            if error.errno == errno.EROFS:
                raise BatchError(
                    f"{self.shown}: {self._error_text(error)}; choose another output", "output_unwritable"
                ) from error
            raise self._unreachable_error(error) from error
        except Exception as error:
            if not _is_storage_error(error):
                raise
            if (status := _status(error)) is not None:
                raise self._status_error(status) from error
            if "credentials" in str(error).lower():
                raise BatchError(
                    f"there are no credentials for {self.shown} ({self._error_text(error)}); {_ACCESS}",
                    "storage_denied",
                ) from error
            raise self._unreachable_error(error) from error

    def _error_text(self, error: BaseException) -> str:
        """Return a library's error without the secrets of the address."""
        if _status(error) is not None and hasattr(error, "message"):
            text: object = f"{_status(error)} {error.message}"  # the rest of it is the address and headers
        else:
            text = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return scrubbed(text, self.address).rstrip(".")[:300]

    def _status_error(self, status: int) -> BatchError:
        """Return the error for a web server's status of 400 or more."""
        if status in (401, 403, 407):
            return BatchError(f"{self.shown} refuses access (status {status}); {_ACCESS}", "storage_denied")
        if status in (408, 425, 429) or status >= 500:
            return BatchError(
                f"{self.shown} can't be read now (status {status}); try again later", "storage_unreachable"
            )
        return BatchError(f"there is no file {self.shown} (status {status}); check the address", self.missing_code)

    def _missing_error(self, error: Exception) -> BatchError:
        if (status := _status(error)) is not None:
            return self._status_error(status)
        cause = error.__cause__ or error.__context__
        if cause is not None and "Connect" in type(cause).__name__:  # raised by fsspec for an unreachable web server
            return self._unreachable_error(cause)
        if not self.is_local and "bucket" in str(error).lower():
            return BatchError(f"there is no bucket for {self.shown}; create it, or name another", "storage_not_found")
        return BatchError(f"there is no file {self.shown}; check the path", self.missing_code)

    def _unreachable_error(self, error: BaseException) -> BatchError:
        return BatchError(
            f"{self.shown} can't be read or written ({self._error_text(error)}); check its address, or try again later",
            "storage_unreachable",
        )

    def _info(self) -> dict[str, Any]:
        with self.map_errors():
            info = cast("dict[str, Any]", self.fs.info(self.path))
        if info.get("type") == "directory":
            raise BatchError(f"{self.shown} is a directory; name a file in it", self.missing_code)
        return info

    def _open_new(self) -> IO[bytes]:
        if self.is_local:  # fsspec's local files cannot be discarded
            return open(self.path, "wb")
        return cast("IO[bytes]", self.fs.open(self.path, "wb", block_size=_UPLOAD_PART_BYTES))

    def _open_raw(self) -> IO[bytes]:
        if self.is_local:
            return open(self.path, "rb", buffering=BUFFER)
        block = _BLOCK if self._has_ranges else 0
        return open_buffered(self.fs.open(self.path, "rb", block_size=block))

    @cached_property
    def _has_ranges(self) -> bool:
        """Return whether ranges can be read: not every HTTP server supports them, or says that it does not."""
        size = self._info().get("size")
        if not self.address.startswith(("http://", "https://")) or not size:
            return True
        with self.fs.open(self.path, "rb", block_size=_BLOCK) as file:
            try:
                file.seek(size - 1)
                return len(file.read(1)) == 1
            except (ValueError, OSError):
                return False

    @cached_property
    def _location(self) -> tuple[Any, str]:
        """Return fsspec's file system, and the path in it."""
        try:
            from fsspec.core import url_to_fs
        except ModuleNotFoundError as error:
            raise package_missing(self.shown, error, "fsspec") from error
        if self.is_local:
            return url_to_fs(str(local_path(self.address)))[0], str(local_path(self.address))
        options: dict[str, Any] = {"use_listings_cache": False}
        address = expand_variables(self.address, self.missing_code)
        if endpointed := _ENDPOINTED.fullmatch(address):
            address = f"s3://{endpointed[2]}"
            options |= {"client_kwargs": {"endpoint_url": endpointed[1]}}
        try:
            fs, path = url_to_fs(address, **options)
        except ImportError as error:
            raise BatchError(
                f"{self.shown} needs a package that is not installed ({self._error_text(error)})", "package_missing"
            ) from error
        except ValueError as error:
            raise BatchError(
                f"{self.shown} is not a valid address: {self._error_text(error)}", self.missing_code
            ) from error
        return fs, path

    @property
    def fs(self) -> Any:
        """fsspec's file system."""
        return self._location[0]

    @property
    def path(self) -> str:
        """The path in the file system."""
        return self._location[1]


_ACCESS = "give the credentials of a user who has access"


@contextmanager
def _discard_on_error(file: Any) -> Iterator[None]:
    """Close the file on success; otherwise discard what was written, if the storage supports that."""
    try:
        yield
    except BaseException:
        if hasattr(file, "discard"):
            file.discard()
            file.closed = True  # otherwise it is written when it is garbage-collected
        else:
            file.close()
        raise
    file.close()


def _etag(info: dict[str, Any]) -> str:
    """Return a storage's tag of the content: S3's and HTTP's ETag, Google's md5Hash, Azure's content_md5."""
    return next((str(info[name]) for name in ("ETag", "etag", "md5Hash", "content_md5", "mtime") if info.get(name)), "")


def _is_storage_error(error: Exception) -> bool:
    """Return whether a storage package raised the error; they share no base class."""
    return type(error).__module__.partition(".")[0] in (
        *("aiohttp", "aiobotocore", "botocore", "s3fs", "gcsfs", "google", "adlfs", "azure", "fsspec", "asyncio"),
        *("paramiko", "requests", "urllib3"),
    )


def _status(error: BaseException) -> int | None:
    """Return the status of a web server's response, which fsspec may raise as a missing file."""
    seen: BaseException | None = error
    while seen is not None:
        if type(seen).__name__ == "ClientResponseError":
            return int(seen.status)  # type: ignore[attr-defined]
        seen = seen.__cause__ or seen.__context__
    return None
