"""What is held at a time is bounded; one more is refused at once, in the words that clients look for."""

from __future__ import annotations

import pytest

from inflight.common.request_error import RequestError
from inflight.runtime.engine.admission import AdmissionSlots
from tests.fixtures.errors import raises


def test_one_more_is_refused_until_a_place_is_free() -> None:
    places = AdmissionSlots(2)
    with places:
        with (
            places,
            raises(RequestError, "overloaded", naming="2"),
            places,
        ):
            pytest.fail("there was no place")
        with places:
            pass


def test_what_fails_gives_its_place_back() -> None:
    places = AdmissionSlots(1)
    for _ in range(3):
        with pytest.raises(ValueError, match="inside"), places:
            raise ValueError("inside")
