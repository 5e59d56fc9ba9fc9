"""Numbers seen in files, for distributions."""

import pytest

from loadtests.errors import LoadError
from loadtests.workloads.distributions import read_numbers
from tests.loadtests.workloads.example_traces import AZURE_2023, BURST_2, LONG, mooncake, row


@pytest.mark.parametrize(
    ("text", "reference", "field", "numbers"),
    [
        ("5\n\n7.5\n 9\n", "f", "input_tokens", [5, 7.5, 9]),
        ("5\n7", "f", "think_time", [5, 7]),
        ("length\n5\n7\n", "f#length", "input_tokens", [5, 7]),
        (AZURE_2023, "f", "input_tokens", [4800, 3100]),
        (AZURE_2023, "f", "output_tokens", [10, 8]),
        (BURST_2, "f", "turn_tokens", [900, 36]),
        (BURST_2, "f#Elapsed time", "cancel_after", [43, 2]),
        (mooncake(row(), row(into=9)), "f", "input_tokens", [700, 9]),
        ('{"wait": 0.5}\n{"wait": 2}\n', "f#wait", "think_time", [0.5, 2]),
    ],
)
def test_numbers_come_from_lines_or_a_column(text: str, reference: str, field: str, numbers: list[float]) -> None:
    assert read_numbers(text.encode(), reference, field) == numbers


@pytest.mark.parametrize(
    ("data", "reference", "field", "says"),
    [
        (b"", "f", "think_time", "f is empty"),
        (b"5\nmany\n", "f", "think_time", "f, line 2, has 'many' as the number"),
        (b"5\n-1\n", "f", "think_time", "f, line 2, has '-1' as the number"),
        (b"5\n\xff\n", "f", "think_time", "f, line 2, is not UTF-8"),
        (b"a,b\n1,2\n", "f", "think_time", "f has columns; name one, such as f#a; it has a, b"),
        (b"a,b\n1,2\n", "f#c", "think_time", "f has no column c; it has a, b"),
        (b"a,b\n1\n", "f#b", "think_time", "f, line 2, has None as the number"),
        (b"a,b\n1,2\n", "f", "input_tokens", "f has no column input_length or ContextTokens or Request tokens"),
        (b'{"a": 1}\n{"b": 1}\n', "f#a", "think_time", "f, line 2, has None as a"),
        (b'{"a": 1}\n\n{"b": 1}\n', "f#a", "think_time", "f, line 3, has None as a"),
        (b'{"a": 1}\n{"a": %d}\n' % (10**400), "f#a", "think_time", "f, line 2, has 1000"),
        (
            f'{{"a": {LONG}}}\n'.encode(),
            "f#a",
            "think_time",
            "f, line 1, can't be read: a number has thousands of digits",
        ),
        (f"5\n{LONG}\n".encode(), "f", "think_time", "f, line 2, has '1111"),
        (
            b"a,b\n1," + b"x" * 200_000,
            "f#a",
            "think_time",
            "f, line 2, is not valid CSV: field larger than field limit",
        ),
        (b'{"a": 1}\n', "f#b", "think_time", "f has no column b; it has a"),
    ],
)
def test_what_is_wrong_is_said_with_the_line(data: bytes, reference: str, field: str, says: str) -> None:
    with pytest.raises(LoadError) as caught:
        read_numbers(data, reference, field)
    assert str(caught.value).startswith(says)
    assert len(str(caught.value)) < 200
    assert caught.value.code == "workload_invalid"
