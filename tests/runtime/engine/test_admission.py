"""What is held at a time is bounded; one more is refused at once, in the words that clients look for."""

from __future__ import annotations

import pytest

from inflight.runtime.engine.admission import AdmissionSlots
from inflight.runtime.messages import RequestError


def test_one_more_is_refused_until_a_place_is_free() -> None:
    places = AdmissionSlots(2)
    with places:
        with places:
            with (
                pytest.raises(RequestError, match=r"Exceeds maximum queue size .* of 2 has been reached") as refused,
                places,
            ):
                pytest.fail("there was no place")
            assert refused.value.code == "overloaded"
        with places:
            pass


def test_what_fails_gives_its_place_back() -> None:
    places = AdmissionSlots(1)
    for _ in range(3):
        with pytest.raises(ValueError, match="inside"), places:
            raise ValueError("inside")
