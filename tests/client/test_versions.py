"""Client and server say so when their versions don't fit."""

from __future__ import annotations

import warnings

import inflight_client
import pytest
from inflight_client.versions import VersionWarning, client_version, version_mismatch, warn_if_incompatible

import inflight


def test_the_clients_version_is_the_packages() -> None:
    assert client_version() == inflight_client.__version__ == inflight.__version__


def test_a_version_that_does_not_fit_is_named_beside_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflight, "__version__", "0.4.1")
    with pytest.warns(VersionWarning, match=r"0\.3\.9.* 0\.4\.1") as caught:
        warn_if_incompatible("0.3.9")
    assert len(caught) == 1


@pytest.mark.parametrize("server", ["0.4.0", "0.4.17", None, ""])
def test_versions_that_fit_and_servers_without_one_are_passed_over(
    monkeypatch: pytest.MonkeyPatch, server: str | None
) -> None:
    monkeypatch.setattr(inflight, "__version__", "0.4.1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_incompatible(server)
    assert version_mismatch(server) == ""
