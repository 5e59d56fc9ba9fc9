"""Secrets in addresses: put in when the address is used, and shown to nobody."""

from __future__ import annotations

import pytest

from inflight.batch.errors import BatchError
from inflight.batch.secret_address import expanded, masked, warning


def test_a_variable_is_put_in_as_the_address_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "p@ss/word")
    monkeypatch.setenv("SHOP_HOST", "db.example")
    address = "postgresql://me:${SHOP_PASSWORD}@${SHOP_HOST}:5432/shop"
    assert expanded(address, "output_failed") == "postgresql://me:p%40ss%2Fword@db.example:5432/shop"
    monkeypatch.setenv("SHOP", "postgresql://me:x@db/shop")
    assert expanded("${SHOP}", "output_failed") == "postgresql://me:x@db/shop"


def test_a_variable_that_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHOP_PASSWORD", raising=False)
    with pytest.raises(BatchError, match="names the variable SHOP_PASSWORD, which is not set") as caught:
        expanded("postgresql://me:${SHOP_PASSWORD}@db/shop", "input_not_found")
    assert caught.value.code == "input_not_found"


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://me:p@ss@db/shop", "postgresql://me:***@db/shop"),
        ("postgresql://db/shop?user=me&password=pass", "postgresql://db/shop?user=me&password=***"),
        ("https://store/rows.jsonl?X-Amz-Security-Token=abc", "https://store/rows.jsonl?X-Amz-Security-Token=***"),
    ],
)
def test_a_typed_password_is_hidden_and_told(address: str, shown: str) -> None:
    assert masked(address) == shown
    assert shown in (warning(address) or "")


@pytest.mark.parametrize(
    "address",
    ["postgresql://me:${P}@db/shop", "postgresql://me@db/shop", "postgresql://me:@/x", "s3://a/b@c:d", "x.csv"],
)
def test_what_is_no_secret_is_shown(address: str) -> None:
    assert masked(address) == address
    assert warning(address) is None
