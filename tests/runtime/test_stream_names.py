from __future__ import annotations

from typing import Any

from inflight.runtime.stream_names import stream_namer


class Response:
    """As python models have it from Triton 25.02 on."""

    def __init__(self, output_tensors: list[Any], error: Any = None, parameters: dict[str, Any] | None = None) -> None:
        self.parameters = parameters


class OldResponse:
    def __init__(self, output_tensors: list[Any], error: Any = None) -> None:
        pass


def test_each_response_gets_a_name_of_its_own_that_is_a_sequence_id() -> None:
    name = stream_namer(Response)
    said = [Response([], **name()).parameters for _ in range(1000)]
    numbers = {parameters["sequence_id"] for parameters in said if parameters is not None}
    assert len(numbers) == 1000
    assert all(type(number) is int and 0 < number < 2**63 for number in numbers)


def test_where_responses_have_no_parameters_there_are_no_names() -> None:
    OldResponse([], **stream_namer(OldResponse)())
    assert stream_namer(OldResponse)() == {}
