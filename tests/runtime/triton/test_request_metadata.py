from __future__ import annotations

from typing import Any

import pytest

from inflight import __version__
from inflight.common.request_error import RequestError
from inflight.runtime.messages import RequestMetadata
from inflight.runtime.triton.request_metadata import ClientVersions, metadata_from
from tests.fixtures.errors import raises

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    ("given", "origin"),
    [
        ({}, None),
        ({"tenant": "", "traceparent": "", "inflight_client": ""}, None),
        ({"priority": 3}, None),
        (
            {"tenant": "team a", "traceparent": TRACE, "inflight_client": "0.1.0"},
            RequestMetadata("team a", TRACE, "0.1.0"),
        ),
        ({"traceparent": f"01{TRACE[2:]}-of-a-later-version"}, RequestMetadata(traceparent=f"01{TRACE[2:]}")),
    ],
)
def test_what_a_request_says_of_itself_is_read(given: dict[str, Any], origin: RequestMetadata | None) -> None:
    assert metadata_from(given) == origin


@pytest.mark.parametrize(
    "traceparent",
    [
        *("nonsense", TRACE.upper(), TRACE[:-1], f"{TRACE}-more", f"{TRACE}0", f"ff{TRACE[2:]}", " " + TRACE),
        "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        f"01{TRACE[2:]}more",
    ],
)
def test_a_malformed_traceparent_counts_as_none(traceparent: str) -> None:
    assert metadata_from({"traceparent": traceparent}) is None


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        *((name, value, "string") for name in ("tenant", "traceparent", "inflight_client") for value in (3, True)),
        ("tenant", "a" * 129, "128"),
        ("tenant", "a\nb", "ASCII"),
        ("tenant", "чай", "ASCII"),
        ("inflight_client", "0.1.0\n", "ASCII"),
    ],
)
def test_what_is_no_name_is_refused(name: str, value: Any, words: str) -> None:
    with raises(RequestError, "invalid_parameter", naming=words) as refusal:
        metadata_from({name: value})
    assert str(refusal.value).startswith(name)


def test_a_version_that_does_not_fit_is_told_once() -> None:
    told: list[str] = []
    versions = ClientVersions(told.append)
    for client in ("9.9.0", __version__, "", "9.9.0", "9.8.1", "9.9.0"):
        versions.check(RequestMetadata(client=client))
    versions.check(None)
    assert [line.partition(" sends")[0] for line in told] == [
        "a client of inflight 9.9.0",
        "a client of inflight 9.8.1",
    ]
    assert __version__ in told[0]


def test_a_flood_of_versions_is_not_remembered() -> None:
    told: list[str] = []
    versions = ClientVersions(told.append)
    for number in range(1000):
        versions.check(RequestMetadata(client=f"9.{number}"))
    assert len(told) == 100
