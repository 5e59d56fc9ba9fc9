"""Options of a gRPC channel, the same for blocking code and asyncio."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from inflight_client import tls_files
from inflight_client.address import Address, Tls

_STREAM_METHOD = "/inference.GRPCInferenceService/ModelStreamInfer"
"""Triton's streaming extension of KServe's v2 protocol; it works for every model, decoupled or not."""

END_OF_CALL_TIMEOUT = 1.0
"""How many seconds to wait for the end of a call after its error; it normally follows at once."""

_OPTIONS: tuple[tuple[str, int], ...] = (
    # No limits on messages: prompts and answers may be long.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # The client retries by itself, within its budget.
    ("grpc.enable_retries", 0),
    # A killed server restarts soon: reconnect at least every second (gRPC's default is two minutes). The last value is
    # also the timeout of one attempt to connect.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.min_reconnect_backoff_ms", 5000),
    # Two clients in one process do not share a connection or its state.
    ("grpc.use_local_subchannel_pool", 1),
    # A call without a deadline detects a vanished peer within six minutes. Not sooner: Triton closes connections that
    # ping more often than every five minutes while it sends no data
    # (--grpc-http2-min-recv-ping-interval-without-data, --grpc-http2-max-ping-strikes).
    ("grpc.keepalive_time_ms", 310_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 0),
)


def options(address: Address) -> list[tuple[str, int]]:
    """Return a channel's options; loopback addresses never use the environment's proxy."""
    return [*_OPTIONS, ("grpc.enable_http_proxy", 0)] if address.loopback else list(_OPTIONS)


def credentials(address: Address, tls: Tls | None) -> grpc.ChannelCredentials | None:
    """Return the TLS credentials; None without TLS. Raises InflightError for invalid files."""
    if not address.secure:
        return None
    files = tls_files.read_tls_files(tls or Tls())
    key = files.certificate if files.key is None else files.key  # one file may hold both
    return grpc.ssl_channel_credentials(files.ca, key, files.certificate)


def connect(
    library: Any, where: str, options: list[tuple[str, int]], credentials: grpc.ChannelCredentials | None
) -> tuple[Any, Any, Any]:
    """Return a channel of `grpc` or `grpc.aio`, the stub of its unary calls, and its streaming call."""
    channel = (
        library.insecure_channel(where, options)
        if credentials is None
        else library.secure_channel(where, credentials, options)
    )
    infer = channel.unary_stream(
        _STREAM_METHOD,
        request_serializer=service_pb2.ModelInferRequest.SerializeToString,
        response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
    )
    return channel, service_pb2_grpc.GRPCInferenceServiceStub(channel), infer


def metadata(headers: Mapping[str, str], call_headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the client's headers, overridden by the call's own."""
    return tuple({**headers, **call_headers}.items() if call_headers else headers.items())
