"""Maps gRPC statuses to the client's errors."""

from __future__ import annotations

import grpc

from inflight_client.deadline import Deadline
from inflight_client.error_mapping import (
    code_from_message,
    connection_closed,
    connection_lost,
    error_from_message,
    not_triton,
    unknown_host,
    unreachable,
)
from inflight_client.errors import InflightError

_BY_STATUS = {
    grpc.StatusCode.CANCELLED: "cancelled",
    grpc.StatusCode.INVALID_ARGUMENT: "invalid_request",
    grpc.StatusCode.NOT_FOUND: "model_not_found",
    grpc.StatusCode.UNAUTHENTICATED: "permission_denied",
    grpc.StatusCode.PERMISSION_DENIED: "permission_denied",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "overloaded",
}
# gRPC's messages, in lower case. Failed connections: no process listens, or name resolution failed ...
_NEVER_CONNECTED = ("failed to connect", "errors resolving", "lookup failed", "dns resolution failed")
# ... unknown hosts (messages of c-ares and the system's resolver; others mean an unreachable name server) ...
_UNKNOWN_HOST = ("domain name not found", "name or service not known", "nodename nor servname")
# ... certificates that are not trusted ...
_UNTRUSTED = ("certificate_verify_failed", "ssl handshake", "tls handshake", "hostname verification", "ssl_error")
# ... and peers that do not speak gRPC; "Failed parsing HTTP/2" alone may also be a damaged connection.
_NOT_GRPC = ("expected settings frame", "http1.x server")


def error_from_status(status: grpc.StatusCode, details: str, where: str, deadline: Deadline) -> InflightError:
    """Return the error for a status: by the server's message, else by gRPC's, else by the status alone."""
    if status is grpc.StatusCode.DEADLINE_EXCEEDED and deadline.at is not None:
        return deadline.error()
    lower = details.lower()
    if status is grpc.StatusCode.UNAVAILABLE:
        if any(words in lower for words in _UNTRUSTED):
            return InflightError(
                f"no trusted connection to {where} is possible ({details}); check the certificates and the scheme",
                "permission_denied",
            )
        if any(words in lower for words in _NOT_GRPC):
            return not_triton(where, "it does not speak gRPC")
        if any(words in lower for words in _UNKNOWN_HOST):
            return unknown_host(where)
        if "failed to connect" in lower and "socket closed" in lower:
            return connection_closed(where, "TLS" if "handshake" in lower else "gRPC")
        if any(words in lower for words in _NEVER_CONNECTED):
            return unreachable(where)
    if code_from_message(details):
        return error_from_message(details)
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return InflightError(details or "the server's time limit for the answer passed", "deadline_exceeded")
    if status is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in lower:
        return InflightError(f"the server does not accept a message of this size: {details}", "invalid_request")
    if status is grpc.StatusCode.UNIMPLEMENTED:
        return not_triton(where, f"it does not speak KServe's v2 protocol: {details}")
    if status is grpc.StatusCode.CANCELLED and "locally cancelled" in lower:
        return InflightError("the call was cancelled", "cancelled")
    if status in _BY_STATUS:
        return InflightError(details or status.name.lower(), _BY_STATUS[status])
    return connection_lost(where, details or status.name.lower())
