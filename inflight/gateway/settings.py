"""The settings of a gateway."""

from __future__ import annotations

import ipaddress
import json
import os
import ssl
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from inflight_client import Address, InflightError

from inflight.gateway.audit.chain import AuditOptions
from inflight.gateway.key_file import default_key_file, read_key_file
from inflight.gateway.routes_file import read_routes

DEFAULT_PORT = 8080
SETTINGS_VARIABLE = "INFLIGHT_GATEWAY_SETTINGS"
"""The environment variable of a worker with its settings; other users could read a command line."""


@dataclass(frozen=True)
class GatewaySettings:
    """`servers` are addresses as batch jobs take them: HOST:PORT, optionally with `,metrics=URL`. `fleet` is the socket
    of what starts and stops them (inflight/deploy/fleet), if something does."""

    servers: tuple[str, ...]
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    served_model_name: str | None = None
    tokenizer: str | None = None
    key_file: str | None = None
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    max_in_flight: int | None = None
    max_waiting: int = 1000
    max_connections: int = 8192
    max_body_bytes: int = 16 * 2**20
    max_audio_bytes: int = 25 * 2**20
    max_audio_seconds: float = 7200.0
    default_max_tokens: int = 1024
    generation_config: Literal["model", "ignore"] = "model"
    request_timeout: float = 600.0
    keep_alive_seconds: float = 10.0
    drain_seconds: float = 30.0
    state_dir: str | None = None
    max_stored_bytes: int = 20_000_000_000
    max_tenant_bytes: int = 5_000_000_000
    cors_origins: tuple[str, ...] = ()
    tls_certificate: str | None = None
    tls_key: str | None = None
    workers: int = 1
    log_requests: bool = False
    audit: str | None = None
    audit_max_bytes: int = 100_000_000
    audit_keep: int | None = None
    audit_prompts: bool = False
    cache_max_bytes: int = 1_000_000_000
    cache_max_age: float = 86_400.0
    otlp_endpoint: str | None = None
    routes: str | None = None
    fleet: str = ""

    @property
    def keys(self) -> Path:
        """The key file."""
        return Path(self.key_file) if self.key_file else default_key_file()

    @property
    def state_path(self) -> Path:
        """The directory of uploads and batches; by default one for each port, since each has its own servers."""
        if self.state_dir:
            return Path(self.state_dir)
        configured = os.environ.get("XDG_STATE_HOME", "")
        base = Path(configured) if configured.startswith("/") else Path.home() / ".local" / "state"
        return base / "inflight" / f"gateway-{self.port}"

    @property
    def audit_options(self) -> AuditOptions | None:
        """Where the audit log is written; None: nowhere."""
        if self.audit is None:
            return None
        return AuditOptions(Path(self.audit), self.audit_max_bytes, self.audit_keep, self.audit_prompts)

    @classmethod
    def from_json(cls, text: str) -> GatewaySettings:
        values: dict[str, Any] = json.loads(text)
        return cls(
            **dict[str, Any](
                {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
            )
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def check_servers(self) -> None:
        """Raise InflightError for an address that can't be used, or whose API key is missing."""
        for address in filter(is_backend, self.servers):
            Address.parse(address).api_key()

    def check(self) -> None:
        """Raise InflightError for a missing key file, an open address without keys, wrong TLS files or routes."""
        keys = read_key_file(self.keys)
        if self.key_file and keys is None:  # else it would answer without keys
            raise InflightError(
                f"there is no key file {self.key_file}; create one with `inflight key add NAME --key-file"
                f" {self.key_file}`, or leave out --key-file",
                "invalid_parameter",
            )
        if keys is None and not is_loopback(self.host):
            raise InflightError(
                f"the gateway would answer any machine that reaches {self.host}, since there are no API keys; create"
                " one with `inflight key add NAME`, or listen on 127.0.0.1",
                "invalid_parameter",
            )
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise InflightError(
                "TLS needs both --tls-certificate and --tls-key; pass the one that is missing", "invalid_parameter"
            )
        if self.audit is None and (self.audit_prompts or self.audit_keep):
            raise InflightError(
                "--audit-prompts and --audit-keep are for an audit log; pass --audit too", "invalid_parameter"
            )
        for option, name in (("certificate", self.tls_certificate), ("key", self.tls_key)):
            try:
                if name is not None:
                    Path(name).open("rb").close()
            except OSError as error:
                raise InflightError(
                    f"--tls-{option} {name} can't be read ({error.strerror}); pass a PEM file", "invalid_parameter"
                ) from None
        if self.tls_certificate is not None and self.tls_key is not None:
            _check_tls(self.tls_certificate, self.tls_key)
        self.check_servers()
        if self.otlp_endpoint is not None:
            _check_otlp(self.otlp_endpoint)
        if self.routes is not None:
            read_routes(Path(self.routes))


def _check_tls(certificate: str, key: str) -> None:
    try:
        # Without a password argument, OpenSSL would ask for one at the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        reason = (error.reason or str(error)).replace("_", " ").lower()
        raise InflightError(
            f"--tls-certificate {certificate} and --tls-key {key} can't be used together ({reason}); pass a"
            " certificate and its own key as PEM, without a password",
            "invalid_parameter",
        ) from None


def _check_otlp(endpoint: str) -> None:
    try:
        url = urlsplit(endpoint)
        valid = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise InflightError(
            f"the OTLP endpoint {endpoint[:200]!r} is not the URL of a collector; pass one such as http://localhost:4318",
            "invalid_parameter",
        )
    try:
        find_spec("opentelemetry.exporter.otlp.proto.http")
        find_spec("opentelemetry.sdk.trace")
    except ModuleNotFoundError:
        raise InflightError(
            "--otlp-endpoint needs the package's extra otlp; run `pip install '.[otlp]'` in a checkout",
            "package_missing",
        ) from None


def is_backend(server: str) -> bool:
    """Return whether this is the address of a server of OpenAI's protocol, not of Triton. Raises InflightError."""
    return Address.parse(server.partition(",metrics=")[0]).openai


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
