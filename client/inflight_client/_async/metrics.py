"""Fetches a server's metrics page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inflight_client._async.http_transport import AsyncHttpTransport
from inflight_client.deadline import Deadline
from inflight_client.metrics import Metrics, page_address, page_credentials, page_text

if TYPE_CHECKING:
    from inflight_client.settings import ClientSettings


async def async_fetch_metrics(url: str, deadline: Deadline, server: ClientSettings | None = None) -> Metrics:
    """Fetch a metrics page, with the headers and certificates of `server` if the page belongs to that server.

    It does if it is on the same host, and not over plain HTTP if the server uses TLS.
    Raises InflightError.
    """
    address = page_address(url)
    transport = AsyncHttpTransport(address, *page_credentials(address, server))
    try:
        return Metrics.parse(page_text(await transport.page(deadline)))
    finally:
        await transport.close()
