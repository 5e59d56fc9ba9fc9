"""Files by their addresses: a path on this machine, or any address of fsspec's (s3://, gs://, https://, ...)."""

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

from inflight.batch.errors import BatchError
from inflight.batch.storage.addresses import is_local, local_path
from inflight.batch.storage.buffered import BUFFER, open_buffered, skip_bytes
from inflight.batch.storage.compression import compression_of, open_compressed
from inflight.batch.storage.secret_address import expand_variables, masked, scrubbed
from inflight.common.atomic_files import make_directory, sync

_ENDPOINTED = re.compile(r"s3://(https?://[^/]+)/(.+)", re.IGNORECASE)
"""An S3 of one's own, in the address, as Triton and `inflight assemble` have it."""
_BLOCK = 4 << 20
_UPLOAD_PART_BYTES = 16 << 20
"""A part of an upload, some of which are in memory. S3 takes 10,000 of them: 160 GB."""
_HASHED_BYTES = 64 << 10
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Reading(NamedTuple):
    """A file that is read: what is `inside`, and as it lies there (the same where it is not compressed)."""

    content: IO[bytes]
    raw: IO[bytes]


@dataclass(frozen=True)
class StoredFile:
    """A file that may be there or not. `absent` is the code of a file that should be there and is not.

    Everything raises BatchError: that code, `storage_denied`, `storage_not_found`, `storage_unreachable`,
    `package_missing` and, in writing, `disk_full` and `output_unwritable`.
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
        """By the address's suffix: gzip, bz2, xz, zstd."""
        return compression_of(self.address)

    @property
    def suffix(self) -> str:
        """That of what is inside: `.jsonl` for `rows.jsonl.gz`; in small letters."""
        name = self.address.partition("?")[0] if not self.is_local else self.address
        return Path(name.removesuffix(Path(name).suffix) if self.compression else name).suffix.lower()

    def size(self) -> int | None:
        """Bytes as they lie there; None where a storage does not say. Raises BatchError where there is no file."""
        size = self._info().get("size")
        return size if isinstance(size, int) else None

    def exists(self) -> bool:
        with self.map_errors():
            return bool(self.fs.exists(self.path))

    def remove(self) -> None:
        """Take it away, if it is there."""
        with self.map_errors():
            if self.fs.exists(self.path):
                self.fs.rm_file(self.path)
                if self.is_local:
                    sync(local_path(self.address).parent)

    def fingerprint(self) -> str:
        """The same as long as the file is: its size, a hash of its beginning and its end, and a storage's own tag."""
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
        """What is inside, decompressed, from that byte of it on. Errors in reading it are BatchErrors too."""
        with self.map_errors(), self._open_raw() as raw, open_compressed(raw, self.compression, self.shown) as file:
            if offset and self.compression is None and raw.seekable():
                raw.seek(offset)
            elif offset:
                skip_bytes(file, offset)
            yield Reading(file, raw)

    @contextmanager
    def open_seekable(self) -> Iterator[IO[bytes]]:
        """The file as it lies there, to be read here and there. Raises BatchError where a storage can only stream."""
        with self.map_errors(), self._open_raw() as file:
            if not file.seekable():
                raise BatchError(
                    f"{self.shown} can only be read from its beginning on; copy it to a disk first", "input_invalid"
                )
            yield file

    @contextmanager
    def writing(self) -> Iterator[IO[bytes]]:
        """A new file in its place, compressed by its suffix. An exception inside leaves no file on object stores."""
        with self.map_errors(writing=True):
            if self.is_local:
                make_directory(local_path(self.address).parent)
            raw = self._open_new()
            with _discard_on_error(raw), open_compressed(raw, self.compression, self.shown, write=True) as file:
                yield file

    @contextmanager
    def map_errors(self, writing: bool = False) -> Iterator[None]:
        """Raises what goes wrong inside as BatchError."""
        try:
            yield
        except BatchError:
            raise
        except FileNotFoundError as error:
            raise self._missing_error(error) from error
        except IsADirectoryError as error:
            raise BatchError(f"{self.shown} is a directory; name a file in it", self.missing_code) from error
        except (NotADirectoryError, FileExistsError) as error:  # a folder of its path is a file
            raise BatchError(
                f"{self.shown} can't be: {self._error_text(error)}; check the path", self.missing_code
            ) from error
        except PermissionError as error:
            if self.is_local:
                code = "output_unwritable" if writing else "storage_denied"
                raise BatchError(f"{self.shown}: {self._error_text(error)}; check its permissions", code) from error
            raise BatchError(
                f"{self.shown} refuses access ({self._error_text(error)}); {_ACCESS}", "storage_denied"
            ) from error
        except OSError as error:
            if error.errno in _NO_ROOM:
                raise BatchError(
                    f"{self.shown} can't be written: {self._error_text(error)}; free space there", "disk_full"
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
        """What a library says, without the secrets of the address."""
        if _status(error) is not None and hasattr(error, "message"):
            said: object = f"{_status(error)} {error.message}"  # all else of it is the address, and headers
        else:
            said = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return scrubbed(said, self.address).rstrip(".")[:300]

    def _status_error(self, status: int) -> BatchError:
        """What a web server's status of 400 or more comes to."""
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
        if cause is not None and "Connect" in type(cause).__name__:  # as fsspec has it for a web server that is away
            return self._unreachable_error(cause)
        if not self.is_local and "bucket" in str(error).lower():
            return BatchError(f"there is no bucket for {self.shown}; make it, or name another", "storage_not_found")
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
        if self.is_local:  # one of fsspec's could not be given up
            return open(self.path, "wb")
        return cast("IO[bytes]", self.fs.open(self.path, "wb", block_size=_UPLOAD_PART_BYTES))

    def _open_raw(self) -> IO[bytes]:
        if self.is_local:
            return open(self.path, "rb", buffering=BUFFER)
        block = _BLOCK if self._has_ranges else 0
        return open_buffered(self.fs.open(self.path, "rb", block_size=block))

    @cached_property
    def _has_ranges(self) -> bool:
        """Whether parts of it can be had: not every server of HTTP gives them, nor says that it does not."""
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
        """The file system of fsspec, and the path there."""
        try:
            from fsspec.core import url_to_fs
        except ModuleNotFoundError as error:
            raise BatchError(
                f"{self.shown} needs the package fsspec; install inflight with its extra, [batch]", "package_missing"
            ) from error
        if self.is_local:
            return url_to_fs(str(local_path(self.address)))[0], str(local_path(self.address))
        options: dict[str, Any] = {"use_listings_cache": False}
        address = expand_variables(self.address, self.missing_code)
        if found := _ENDPOINTED.fullmatch(address):
            address = f"s3://{found[2]}"
            options |= {"client_kwargs": {"endpoint_url": found[1]}}
        try:
            fs, path = url_to_fs(address, **options)
        except ImportError as error:
            raise BatchError(
                f"{self.shown} needs a package that is not installed ({self._error_text(error)})", "package_missing"
            ) from error
        except ValueError as error:
            raise BatchError(
                f"{self.shown} is no address that can be read: {self._error_text(error)}", self.missing_code
            ) from error
        return fs, path

    @property
    def fs(self) -> Any:
        """The file system of fsspec."""
        return self._location[0]

    @property
    def path(self) -> str:
        """Where it lies there."""
        return self._location[1]


_ACCESS = "give the credentials of a user who has access"


@contextmanager
def _discard_on_error(file: Any) -> Iterator[None]:
    """Close the file if all goes well; else drop what is written, where the storage can."""
    try:
        yield
    except BaseException:
        if hasattr(file, "discard"):
            file.discard()
            file.closed = True  # else it is written after all when it is collected
        else:
            file.close()
        raise
    file.close()


def _etag(info: dict[str, Any]) -> str:
    """What storages say of an object's content: S3's and HTTP's ETag, Google's md5Hash, Azure's content_md5."""
    return next((str(info[name]) for name in ("ETag", "etag", "md5Hash", "content_md5", "mtime") if info.get(name)), "")


def _is_storage_error(error: Exception) -> bool:
    """Whether a package that reaches storages raised it; there is no class that they share."""
    return type(error).__module__.partition(".")[0] in (
        *("aiohttp", "aiobotocore", "botocore", "s3fs", "gcsfs", "google", "adlfs", "azure", "fsspec", "asyncio"),
        *("paramiko", "requests", "urllib3"),
    )


def _status(error: BaseException) -> int | None:
    """The status that a web server has answered with, which fsspec may tell as a file that is not there."""
    seen: BaseException | None = error
    while seen is not None:
        if type(seen).__name__ == "ClientResponseError":
            return int(seen.status)  # type: ignore[attr-defined]
        seen = seen.__cause__ or seen.__context__
    return None
