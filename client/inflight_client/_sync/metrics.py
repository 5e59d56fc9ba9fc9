# Generated from _async/metrics.py by scripts/unasync.py; do not edit.
"""Fetches a server's metrics page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inflight_client._sync.http_transport import HttpTransport
from inflight_client.deadline import Deadline
from inflight_client.metrics import Metrics, page_address, page_credentials, page_text

if TYPE_CHECKING:
    from inflight_client.settings import ClientSettings


def fetch_metrics(url: str, deadline: Deadline, server: ClientSettings | None = None) -> Metrics:
    """Fetch a metrics page, with the headers and certificates of `server` if the page belongs to that server.

    It does if it is on the same host, and not over plain HTTP if the server uses TLS.
    Raises InflightError.
    """
    address = page_address(url)
    transport = HttpTransport(address, *page_credentials(address, server))
    try:
        return Metrics.parse(page_text(transport.page(deadline)))
    finally:
        transport.close()
