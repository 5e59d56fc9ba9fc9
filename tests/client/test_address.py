"""Addresses and headers: invalid ones are refused when the client is made, without showing a secret."""

from __future__ import annotations

from typing import Any

import pytest
from inflight_client import InflightError, Tls
from inflight_client.address import Address, validate_headers

from tests.fixtures.errors import raises

GRPC, HTTP = Address.parse("localhost"), Address.parse("http://localhost")


@pytest.mark.parametrize(
    ("text", "url", "authority"),
    [
        ("localhost", "grpc://localhost:8001", "localhost:8001"),
        ("triton_1.example:9001", "grpc://triton_1.example:9001", "triton_1.example:9001"),
        ("GRPCS://Triton.example", "grpcs://triton.example:8001", "triton.example:8001"),
        ("[::1]:9", "grpc://[::1]:9", "[::1]:9"),
        ("http://[fe80::1%eth0]", "http://[fe80::1%eth0]:8000", "[fe80::1%eth0]:8000"),
        ("http://bücher.example/llm/", "http://bücher.example:8000/llm", "bücher.example:8000"),
        ("https://triton.example/@llm", "https://triton.example:443/@llm", "triton.example:443"),
        ("https://triton.example", "https://triton.example:443", "triton.example:443"),
        ("https://triton.example:8443/a/b", "https://triton.example:8443/a/b", "triton.example:8443"),
    ],
)
def test_an_address_is_read(text: str, url: str, authority: str) -> None:
    address = Address.parse(text)
    assert (address.url, address.authority) == (url, authority)


@pytest.mark.parametrize(
    "text",
    [
        *("", ":8001", "localhost:", "localhost:0", "localhost:65536", "localhost:http", "http://", "http:///path"),
        *("a b:1", " localhost", "localhost\n", "lo\tcalhost:1", "a,b:1", "a|b", "http://a\\b", "\ud800:1"),
        *("http://http://x:1", "http://x//y", "ftp://x", "unix:///tmp/socket", "dns:///x:1", "://x"),
        *(
            "openai+grpc://x",
            "openai+x:1",
            "openai+http://x#tea",
            "http://x?model=tea",
            "http://x#tea",
            "localhost:8001/v2",
            "[::1",
            "http://[tea]:1",
        ),
        *(None, 5, b"localhost:8001", ["localhost:8001"]),
    ],
    ids=repr,
)
def test_an_address_that_can_not_be_used_is_refused(text: Any) -> None:
    with raises(InflightError, "invalid_parameter", naming="address") as raised:
        Address.parse(text)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "url", "query"),
    [
        ("openai+http://tea.example", "http://tea.example:80/v1", ("", "", "")),
        ("OpenAI+https://tea.example/v1/?model=a%2Fb", "https://tea.example:443/v1", ("a/b", "", "")),
        ("openai+http://[::1]:9/v3?key=TEA_KEY&dialect=ovms", "http://[::1]:9/v3", ("", "TEA_KEY", "ovms")),
    ],
)
def test_an_address_of_openai_s_protocol_has_a_query(text: str, url: str, query: tuple[str, ...]) -> None:
    address = Address.parse(text)
    assert (address.url, address.openai) == (url, True)
    assert (address.model, address.key, address.dialect) == query


INVALID_QUERIES = [
    "key=s3cret",
    "key=",
    "model=",
    "model=a&model=b",
    "model=a%0ab",
    "tenant=a",
    "dialect=latin",
    "model",
]


@pytest.mark.parametrize("query", INVALID_QUERIES)
def test_a_query_that_can_not_be_used_is_refused_and_shows_no_key(query: str) -> None:
    with raises(InflightError, "invalid_parameter") as raised:
        Address.parse(f"openai+http://tea.example/v1?{query}")
    assert "s3cret" not in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        "http://me:s3cret@x",
        "http://:s3cret@x",
        "http://:s3cret@x:99999",
        "me:s3cret@[x",
        "http://s3cret@x",
        "me:s3cret@x:8001",
    ],
)
def test_an_address_with_a_password_is_refused_and_not_shown(text: str) -> None:
    with raises(InflightError, "invalid_parameter", naming="password") as raised:
        Address.parse(text)
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize("address", [GRPC, HTTP])
def test_headers_are_taken_in_small_letters(address: Address) -> None:
    given = {"Authorization": "Bearer abc", "x-tenant_1.b": "", "HOST": "other"}
    assert validate_headers(given, address) == {"authorization": "Bearer abc", "x-tenant_1.b": "", "host": "other"}


INVALID_HEADERS: list[tuple[Any, str]] = [
    *(("s3cret", "headers is a str"), ([("a", "s3cret")], "headers is a list")),
    *(({1: "s3cret"}, "1"), ({"a b": "s3cret"}, "'a b'"), ({"": "s3cret"}, "''"), ({":path": "s3cret"}, "':path'")),
    *(({"a": value}, "header a") for value in ("s3cret\r\nb: c", "s3crét", " s3cret", b"s3cret")),
    *(({name: "3"}, f"header {name}") for name in ("Content-Length", "transfer-encoding", "accept-encoding")),
]


@pytest.mark.parametrize("address", [GRPC, HTTP])
@pytest.mark.parametrize(("headers", "named"), INVALID_HEADERS)
def test_a_header_that_can_not_be_sent_is_refused(headers: Any, named: str, address: Address) -> None:
    with raises(InflightError, "invalid_parameter", naming=named) as raised:
        validate_headers(headers, address)
    assert "s3cr" not in str(raised.value)


@pytest.mark.parametrize("name", ["x-bin", "X-Bin", "x!y", "x~", "grpc-timeout"])
def test_names_that_grpc_lacks_are_refused_for_it_alone(name: str) -> None:
    with raises(InflightError, "invalid_parameter", naming=("gRPC", "header")):
        validate_headers({name: "1"}, GRPC)
    assert validate_headers({name: "1"}, HTTP) == {name.lower(): "1"}


@pytest.mark.parametrize("value", [5, "", b"ca.pem"])
def test_certificates_are_files(value: Any) -> None:
    with raises(InflightError, "invalid_parameter", naming="tls.ca"):
        Tls(ca=value)
