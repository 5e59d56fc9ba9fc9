from __future__ import annotations

import pytest

from build_engines.errors import BuildError
from build_engines.plan.size import GIB, format_size, parse_size
from tests.fixtures.errors import raises


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24GiB", 24 * GIB),
        ("24gib", 24 * GIB),
        ("24 GiB", 24 * GIB),
        ("24GB", 24 * 10**9),
        ("80g", 80 * GIB),
        ("1.5T", 3 * 2**39),
        ("512M", 2**29),
        ("512mb", 512 * 10**6),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "24", "much", "-24GiB", "0GiB", "24GiBs", "24 G B", "GiB", "1e9g", "24GX", "nan"])
def test_what_is_no_size_says_how_to_write_one(text: str) -> None:
    with raises(BuildError, "invalid_parameter", naming="24GiB"):
        parse_size(text)


def test_sizes_are_said_with_what_counts() -> None:
    assert [format_size(size) for size in (1536, 3 * 2**19, 24 * GIB + GIB // 2, 2000 * GIB)] == [
        "1.5 KiB",
        "2 MiB",
        "24.5 GiB",
        "2,000 GiB",
    ]
