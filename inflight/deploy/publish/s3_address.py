"""The address of a repository on S3, in the forms of users, boto3 and Triton."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from inflight.deploy.errors import DeployError, invalid
from inflight.deploy.repository.options import check_readable

_ENDPOINTED = re.compile(r"(?:(https?)://)?([0-9a-zA-Z.-]+):([0-9]+)/(.*)")
_BUCKET = re.compile(r"[0-9a-z.-]{3,63}")
# Triton reads no other characters after a custom endpoint.
_KEY = re.compile(r"[0-9a-zA-Z._-]+")
_SCHEME = "s3://"
_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+-]*:/")
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class S3Address:
    """A place in a bucket; without `endpoint` ("http://host:port") it is on AWS. `prefix` may be empty."""

    bucket: str
    prefix: str
    endpoint: str | None = None

    @classmethod
    def parse(cls, address: str, endpoint_url: str | None = None) -> S3Address:
        """Parse s3://bucket/path, or with a custom endpoint s3://http://host:port/bucket/path, Triton's form.

        In the first form, the endpoint is `endpoint_url`, else AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL. Raises
        DeployError `invalid_parameter`.
        """
        rest = address[len(_SCHEME) :] if is_s3(address) else address
        if match := _ENDPOINTED.fullmatch(rest):
            scheme, host, port, path = match.groups()
            if endpoint_url is not None:
                raise invalid(
                    f"{address} names its endpoint already; leave --endpoint-url out, or give s3://bucket/path."
                )
            endpoint: str | None = f"{scheme or 'http'}://{host}:{port}"
        elif "://" in rest:
            raise _invalid_address(address, "its endpoint needs a port, as in s3://https://host:443/bucket/path")
        else:
            configured = endpoint_url or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
            endpoint, path = _endpoint(configured) if configured else None, rest
        bucket, *keys = [part for part in path.split("/") if part] or [""]
        if not _BUCKET.fullmatch(bucket):
            raise _invalid_address(address, f"{bucket!r} is not a bucket name (3 to 63 of a-z, 0-9, dots and hyphens)")
        for key in keys:
            if not _KEY.fullmatch(key):
                raise _invalid_address(address, f"Triton reads letters, digits, dots, _ and - in a path, not {key!r}")
        return cls(bucket, "/".join(keys), endpoint)

    def __str__(self) -> str:
        """Return Triton's form for --model-repository."""
        place = "/".join(filter(None, [self.bucket, self.prefix]))
        return f"s3://{self.endpoint}/{place}" if self.endpoint else f"s3://{place}"

    def parents(self) -> list[S3Address]:
        """Return the places that contain this one, up to the whole bucket."""
        keys = self.prefix.split("/") if self.prefix else []
        return [replace(self, prefix="/".join(keys[:count])) for count in range(len(keys))]

    def key(self, name: str) -> str:
        """Return the key of a file of the repository."""
        return f"{self.prefix}/{name}" if self.prefix else name


def is_s3(address: str) -> bool:
    return address.lower().startswith(_SCHEME)


def parse_location(location: str | Path, endpoint_url: str | None = None) -> Path | S3Address:
    """Parse a directory or an address on S3. Raises DeployError `invalid_parameter`."""
    text = str(location)
    if is_s3(text):
        return S3Address.parse(text, endpoint_url)
    if endpoint_url is not None:
        raise invalid(
            f"--endpoint-url {endpoint_url} is for a place on S3, and {text} is a directory; leave it out, or give"
            " s3://bucket/path."
        )
    check_readable(text)
    if _URL.match(text):
        raise invalid(f"{text!r} is neither a directory nor an address on S3; give a path, or s3://bucket/path.")
    return Path(location)


def _endpoint(url: str) -> str:
    """Return an endpoint with scheme, host and port, as Triton requires."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in _PORTS or not parts.hostname or port == -1 or parts.path.strip("/"):
        raise invalid(f"The S3 endpoint {url!r} is invalid; give it as http://host:port or https://host:port.")
    return f"{parts.scheme}://{parts.hostname}:{port or _PORTS[parts.scheme]}"


def _invalid_address(address: str, why: str) -> DeployError:
    return invalid(f"{address!r} is not an address of a repository on S3: {why}; give s3://bucket/path.")
