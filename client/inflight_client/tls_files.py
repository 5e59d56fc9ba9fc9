"""The certificates of a TLS connection, read and checked before anything is sent."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from inflight_client.address import Tls
from inflight_client.errors import InflightError


class TlsContents(NamedTuple):
    """The PEM contents of the files; None for those that are not given."""

    ca: bytes | None
    certificate: bytes | None
    key: bytes | None


def read_tls_files(tls: Tls) -> TlsContents:
    """Read the files. Raises InflightError: `permission_denied` if one can't be read, `invalid_parameter` if one has
    the wrong content or does not match the other."""
    contents = TlsContents(*(_read_file(name, getattr(tls, name)) for name in TlsContents._fields))
    if tls.key is not None and tls.certificate is None:
        raise InflightError(f"the key {tls.key} is given without its certificate; give both", "invalid_parameter")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if contents.ca is not None:
        _check(f"{tls.ca} has no certificates in PEM format", lambda: context.load_verify_locations(tls.ca))
    if tls.certificate is not None:
        certificate, key = tls.certificate, tls.key
        what = (
            f"{certificate}{'' if key is None else f' and {key}'} do not contain a matching certificate and key as PEM"
        )
        _check(what, lambda: context.load_cert_chain(certificate, key, password=""))
    return contents


def _read_file(name: str, path: str | Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        words = {"ca": "the CA's certificates", "certificate": "the certificate", "key": "the key"}[name]
        raise InflightError(
            f"{words} in {path} can't be read: {error.strerror or error}; check the path and its permissions",
            "permission_denied",
        ) from None


def _check(otherwise: str, load: Callable[[], object]) -> None:
    try:
        load()
    except (ssl.SSLError, ValueError, OSError) as error:
        reason = getattr(error, "reason", None) or str(error) or "it is empty"
        raise InflightError(f"{otherwise} ({reason})", "invalid_parameter") from None
