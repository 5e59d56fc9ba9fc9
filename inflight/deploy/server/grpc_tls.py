"""TLS for the gRPC port of a server."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from inflight.deploy.errors import DeployError, invalid


@dataclass(frozen=True)
class GrpcTls:
    """PEM files: the server's certificate (with its intermediate certificates) and key.

    With `ca`, clients must present a certificate signed by one in that file.
    """

    certificate: Path
    key: Path
    ca: Path | None = None

    @classmethod
    def from_options(cls, certificate: Path | None, key: Path | None, ca: Path | None) -> GrpcTls | None:
        """Return the TLS files; None without any. Raises DeployError `invalid_parameter` for unusable ones."""
        if certificate is None and key is None and ca is None:
            return None
        if certificate is None or key is None:
            missing = "--grpc-tls-certificate" if certificate is None else "--grpc-tls-key"
            raise invalid(f"TLS needs both --grpc-tls-certificate and --grpc-tls-key; give {missing}.")
        tls = cls(certificate.absolute(), key.absolute(), None if ca is None else ca.absolute())
        tls.check()
        return tls

    def check(self) -> None:
        """Read the files, since the server would not report what is wrong with them. Raises DeployError."""
        for option, path in (("certificate", self.certificate), ("key", self.key), ("ca", self.ca)):
            try:
                if path is not None:
                    path.open("rb").close()
            except OSError as error:
                raise _invalid_file(option, path, error.strerror or str(error)) from None
        try:
            # Without a password argument, OpenSSL would ask for one at the terminal.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key, password="")
        except ssl.SSLError as error:
            raise invalid(
                f"--grpc-tls-certificate {self.certificate} and --grpc-tls-key {self.key} can't be used together"
                f" ({_reason(error)}); give a certificate and its own key as PEM, without a password."
            ) from None
        try:
            if self.ca is not None:
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(self.ca)
        except ssl.SSLError as error:
            raise _invalid_file("ca", self.ca, _reason(error)) from None

    def arguments(self) -> list[str]:
        """Return arguments for tritonserver."""
        arguments = [
            "--grpc-use-ssl=true",
            f"--grpc-server-cert={self.certificate}",
            f"--grpc-server-key={self.key}",
        ]
        if self.ca is not None:
            arguments += ["--grpc-use-ssl-mutual=true", f"--grpc-root-cert={self.ca}"]
        return arguments


def _invalid_file(option: str, path: Path | None, reason: str) -> DeployError:
    return invalid(
        f"--grpc-tls-{option} {path} can't be used ({reason}); give a file with certificates or a key as PEM."
    )


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()
