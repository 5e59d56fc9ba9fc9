"""How a gRPC connection is made: the same options for ordinary code and for asyncio."""

from __future__ import annotations

from collections.abc import Mapping

import grpc

from inflight_client import tls_files
from inflight_client.address import Address, Tls

STREAM_METHOD = "/inference.GRPCInferenceService/ModelStreamInfer"
"""KServe's v2 protocol has no streams; this is Triton's addition, which every model takes, decoupled or not."""

END_OF_CALL_TIMEOUT = 1.0
"""How long the end of a call is waited for that has brought an error; it comes right behind it."""

_OPTIONS: tuple[tuple[str, int], ...] = (
    # Messages of any length: prompts may be long, and so may answers.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # The client above decides what is sent again, and counts it.
    ("grpc.enable_retries", 0),
    # A server that was killed is there again soon: look for it every second at the latest (by default it would be two
    # minutes). The last is also how long one attempt to connect may take.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.min_reconnect_backoff_ms", 5000),
    # Two clients of one process share neither a connection nor its state.
    ("grpc.use_local_subchannel_pool", 1),
    # A peer that vanished without a word is noticed within six minutes by a call that has no deadline. Not sooner:
    # Triton closes connections that ping more often than every five while it has nothing to say
    # (--grpc-http2-min-recv-ping-interval-without-data, --grpc-http2-max-ping-strikes).
    ("grpc.keepalive_time_ms", 310_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 0),
)


def options(address: Address) -> list[tuple[str, int]]:
    """A channel's options; to this machine itself never through a proxy, whatever the environment says."""
    return [*_OPTIONS, ("grpc.enable_http_proxy", 0)] if address.loopback else list(_OPTIONS)


def credentials(address: Address, tls: Tls | None) -> grpc.ChannelCredentials | None:
    """None for an address without TLS. Raises InflightError for files that can't be used."""
    if not address.secure:
        return None
    files = tls_files.read_tls_files(tls or Tls())
    key = files.certificate if files.key is None else files.key  # one file may hold both
    return grpc.ssl_channel_credentials(files.ca, key, files.certificate)


def metadata(headers: Mapping[str, str], call_headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The client's headers, and a call's own, which win."""
    return tuple({**headers, **call_headers}.items() if call_headers else headers.items())
