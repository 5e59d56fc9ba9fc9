from __future__ import annotations

from typing import Any

import pytest

from inflight.runtime.streams.sequence_ids import is_unary, sequence_id_factory


class ParameterResponse:
    """As python models have it from Triton 25.02 on."""

    def __init__(self, output_tensors: list[Any], error: Any = None, parameters: dict[str, Any] | None = None) -> None:
        self.parameters = parameters


class PlainResponse:
    def __init__(self, output_tensors: list[Any], error: Any = None) -> None:
        pass


@pytest.mark.parametrize("streams", [True, False])
def test_each_response_gets_a_name_of_its_own_that_is_a_sequence_id(streams: bool) -> None:
    name = sequence_id_factory(ParameterResponse)
    said = [ParameterResponse([], **name(streams)).parameters for _ in range(1000)]
    numbers = {parameters["sequence_id"] for parameters in said if parameters is not None}
    assert len(numbers) == 1000
    assert all(type(number) is int and 0 < number < 2**63 for number in numbers)
    assert {is_unary(number) for number in numbers} == {not streams}


def test_names_that_clients_give_say_nothing_of_their_answers() -> None:
    assert not any(map(is_unary, (0, 1, 2**32, "", "a name", str(2**62))))


def test_where_responses_have_no_parameters_there_are_no_names() -> None:
    PlainResponse([], **sequence_id_factory(PlainResponse)(True))
    assert sequence_id_factory(PlainResponse)(False) == {}
