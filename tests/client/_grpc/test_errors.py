"""gRPC's own words for calls that never reached a server, as different versions and resolvers say them."""

from __future__ import annotations

import grpc
import pytest
from inflight_client._grpc.errors import error_from_status
from inflight_client.deadline import NEVER


@pytest.mark.parametrize(
    ("details", "code", "retry"),
    [
        (
            "errors resolving nobody.invalid:8001: [field:hostname lookup error:address lookup failed for "
            "nobody.invalid:8001: Domain name not found]",
            "host_not_found",
            False,
        ),
        (
            "DNS resolution failed for nobody.invalid:8001: C-ares status is not ARES_SUCCESS qtype=A "
            "name=nobody.invalid is_balancer=0: Domain name not found",
            "host_not_found",
            False,
        ),
        ("DNS resolution failed for a:1: UNKNOWN: Name or service not known", "host_not_found", False),
        (
            "DNS resolution failed for a.example:8001: C-ares status is not ARES_SUCCESS qtype=A name=a.example "
            "is_balancer=0: Could not contact DNS servers",
            "server_unreachable",
            True,
        ),
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Connection refused (111)",
            "server_unreachable",
            True,
        ),
        ("Failed parsing HTTP/2: Expected SETTINGS frame as the first frame", "unsupported_deployment", False),
        ("Trying to connect an http1.x server", "unsupported_deployment", False),
        ("Socket closed", "server_gone", True),
        (
            "Stream removed (Delayed close due to in-progress write (Failed parsing HTTP/2 "
            "(Frame size 6643561 is larger than max frame size 4194304)))",
            "server_gone",
            True,
        ),
    ],
)
def test_only_what_may_pass_is_sent_again(details: str, code: str, retry: bool) -> None:
    error = error_from_status(grpc.StatusCode.UNAVAILABLE, details, "a.example:8001", NEVER)
    assert (error.code, error.retry) == (code, retry)
    assert "a.example:8001" in str(error)
