"""Figures and foreign texts, as a page shows them."""

from __future__ import annotations

import doctest
from types import ModuleType

import pytest

from loadtests import served_model
from loadtests.arrivals import profile
from loadtests.report import chart, formats, slo_text
from loadtests.run import server_metrics


@pytest.mark.parametrize("module", [chart, formats, profile, served_model, server_metrics, slo_text])
def test_the_examples_in_the_docstrings_are_true(module: ModuleType) -> None:
    results = doctest.testmod(module)
    assert results.attempted
    assert not results.failed


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0 ms"),
        (9.9e-7, "0.99 µs"),
        (0.0009996, "1 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1 s"),
        (-0.0021, "-2.1 ms"),
        (12_345.6, "12,346 s"),
        (float("nan"), "–"),
        (float("inf"), "–"),
    ],
)
def test_a_time_has_the_unit_that_fits_it(value: float, shown: str) -> None:
    assert formats.seconds(value) == shown


def test_a_share_that_is_not_all_never_reads_as_all() -> None:
    assert [formats.percent(value) for value in (0.0, 0.9996, 0.999_999_9, 1e-9, 1.0)] == [
        "0%",
        "99.96%",
        ">99.999%",
        "<0.001%",
        "100%",
    ]


def test_what_a_browser_cannot_show_stands_as_a_sign_that_it_can() -> None:
    shown = formats.text("a\x00b\x1b[31m \ud800 \u202edcba")
    assert shown == "a␀b␛[31m � �dcba"
    shown.encode()


def test_a_long_text_is_cut_and_says_how_long_it_was() -> None:
    assert formats.text("é" * 1_048_576) == "é" * 400 + "… (1,048,576 characters)"
