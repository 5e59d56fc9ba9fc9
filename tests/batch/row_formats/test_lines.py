"""Ids as rows of files and tables have them, and values as lines have them."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from inflight.batch.row_formats.lines import decode_binary, dump_json, parse_id

_UUID = "12345678-1234-5678-1234-567812345678"


@pytest.mark.parametrize(
    ("value", "text"), [(b"caf\xc3\xa9\n", "café\n"), ((1).to_bytes(16, "big"), None), (b"\x01" * 4, None)]
)
def test_binary_values_are_texts_only_without_control_characters(value: bytes, text: str | None) -> None:
    assert decode_binary(value) == (value if text is None else text)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("é", "é"),
        (7, 7),
        (Decimal("5.0"), 5),
        (UUID(_UUID), _UUID),
        (date(2026, 5, 4), "2026-05-04"),
        (datetime(2026, 5, 4, 3, 2, 1), "2026-05-04T03:02:01"),
        (-(2**63), -(2**63)),
        (2**64, None),
        (Decimal("5.5"), None),
        (Decimal("NaN"), None),
        (b"\xff", "ff"),
        ("\ud800", None),
        *((1.0, 1), (-2.0, -2), (2.0**53, 2**53), (2.0**53 + 2, None), (1.5, None), (float("nan"), None), (True, None)),
    ],
)
def test_ids_are_texts_and_whole_numbers_and_whole_floats_that_are_exact(value: Any, expected: Any) -> None:
    assert parse_id(value) == expected


def test_values_of_tables_are_written_as_json() -> None:
    values = {"price": Decimal("1.50"), "day": date(2026, 5, 4), "raw": b"\x01\xff", "nan": float("nan")}
    assert dump_json(values) == b'{"price":"1.50","day":"2026-05-04","raw":"01ff","nan":null}'
