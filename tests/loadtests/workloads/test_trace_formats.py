"""Traces in the three public formats, and what is wrong with them."""

import pytest

from loadtests.errors import LoadError
from loadtests.workloads.trace_formats import Trace, read_trace
from tests.loadtests.workloads.example_traces import AZURE_2023, BURST_1, BURST_2, HEAD, LONG, mooncake, nested, row

AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2100,5
2024-05-10 00:00:01+00:00,7,6
"""


def read(text: str | bytes, form: str = "auto") -> Trace:
    return read_trace(text if isinstance(text, bytes) else text.encode(), "t", form)


def table(trace: Trace) -> list[tuple[float, int, int]]:
    rows = zip(trace.due.tolist(), trace.input_tokens.tolist(), trace.output_tokens.tolist(), strict=True)
    return [(round(due, 6), into, out) for due, into, out in rows]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        (AZURE_2023, [(0, 4800, 10), (0.052, 3100, 8)]),
        (AZURE_2024, [(0, 2100, 5), (0.99007, 7, 6)]),
        (BURST_1, [(0, 400, 18), (40, 1000, 230)]),
        (BURST_2, [(0, 900, 440), (51.5, 36, 29)]),
        (mooncake(row(27000, 6900, 52), row(30053, 6400, 26)), [(0, 6900, 52), (3.053, 6400, 26)]),
    ],
)
def test_each_format_is_known_by_its_first_line(text: str, rows: list[tuple[float, int, int]]) -> None:
    assert table(read(text)) == rows
    assert table(read(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())) == rows


def test_hash_ids_stay_with_their_requests() -> None:
    rows = [
        row(30, hash_ids=[1, 2]),
        row(10, hash_ids=[3]),
        row(20),
        row(0, out=0, hash_ids=[9, 9]),
        row(40, hash_ids=[4]),
    ]
    trace = read(mooncake(*rows))
    assert [trace.hash_ids(number) for number in range(4)] == [[3], [], [1, 2], [4]]
    assert trace.due.tolist() == pytest.approx([0, 0.01, 0.02, 0.03])


def test_requests_come_in_the_order_of_their_times_and_as_they_stood_within_one() -> None:
    lines = BURST_1.splitlines()
    text = "\n".join([lines[0], "9,A,1,1,2,x", "7,A,2,1,3,x", "9,A,3,1,4,x", "7,A,4,1,5,x"])
    assert table(read(text)) == [(0, 2, 1), (0, 4, 1), (2, 1, 1), (2, 3, 1)]


def test_failed_requests_are_left_out() -> None:
    text = BURST_1 + "46,GPT-4,1087,0,1087,API log\n"
    assert len(read(text)) == 2


@pytest.mark.parametrize(
    ("text", "form", "says"),
    [
        ("", "auto", "t is not a known trace format"),
        ("", "mooncake", "t is empty"),
        ("", "azure", "t, line 1, has no column TIMESTAMP, ContextTokens, GeneratedTokens; it has none"),
        ("a,b\n1,2\n", "auto", "t is not a known trace format"),
        (HEAD + "\n", "auto", "t has no request with an output"),
        ("TIMESTAMP,ContextTokens\n", "auto", "t, line 1, has no column GeneratedTokens; it has TIMESTAMP, ContextT"),
        (AZURE_2023 + "2023-11-16 18:1", "auto", "t, line 4, is truncated: it has 1 of 3 columns"),
        (AZURE_2023 + "2023-11-16 18:17:05,12,-3\n", "auto", "t, line 4, has GeneratedTokens '-3'; it must be a whole"),
        (AZURE_2023 + "2023-11-16 18:17:05,1.5,3\n", "auto", "t, line 4, has ContextTokens '1.5'; it must be a whole"),
        (AZURE_2023 + f"2023-11-16 18:17:05,{10**30},3\n", "auto", "t, line 4, has ContextTokens '1000"),
        (AZURE_2023 + f"2023-11-16 18:17:05,{LONG},3\n", "auto", "t, line 4, has ContextTokens '1111"),
        (
            AZURE_2023 + "yesterday,12,3\n",
            "auto",
            "t, line 4, has TIMESTAMP 'yesterday', which is not in the time format",
        ),
        (BURST_1 + "nan,A,1,2,3,x\n", "auto", "t, line 4, has Timestamp 'nan', which is not in the time format"),
        (BURST_1 + "1e308,A,1,2,3,x\n", "auto", "t, line 4, has Timestamp '1e308', which is not in the time format"),
        (AZURE_2023.encode() + b"\xff\xfe", "auto", "t, line 4, is not UTF-8"),
        (AZURE_2023 + '"' + "x" * 200_000, "auto", "t, line 4, is not valid CSV"),
        (mooncake(row()) + '{"timestamp": 5, "inp', "auto", "t, line 2, is truncated or not valid JSON"),
        (mooncake(row(), row(into=-1)), "auto", "t, line 2, has input_length -1; it must be a whole number"),
        (mooncake(row(), row(out="9")), "auto", "t, line 2, has output_length '9'; it must be a whole number"),
        (mooncake(row(), row(out=True)), "auto", "t, line 2, has output_length True; it must be a whole number"),
        (mooncake(row(), {"timestamp": 0}), "auto", "t, line 2, has input_length None; it must be a whole number"),
        (mooncake(row("now")), "auto", "t, line 1, has timestamp 'now'; it must be a number of milliseconds"),
        (mooncake(row(), row(10**400)), "auto", "t, line 2, has timestamp 1000"),
        (mooncake(row(), row(1e308)), "auto", "t, line 2, has timestamp 1e+308; it must be a number of milliseconds"),
        (mooncake(row()) + f'{{"timestamp": {LONG}}}', "auto", "t, line 2, can't be read: a number has thousands"),
        (mooncake(row(), row(into=nested(90))), "auto", "t, line 2, has input_length [[[["),
        (mooncake(row(), row(into=nested(900))), "auto", "t, line 2, is nested too deeply"),
        (mooncake(row(hash_ids=["a"])), "auto", "t, line 1, has hash_ids that are not a list of whole numbers"),
        (mooncake(row(hash_ids=5)), "auto", "t, line 1, has hash_ids that are not a list of whole numbers"),
        (mooncake(row(hash_ids=[10**30])), "auto", "t, line 1, has hash_ids that are not a list of whole numbers"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence_with_the_line(text: str | bytes, form: str, says: str) -> None:
    with pytest.raises(LoadError) as caught:
        read(text, form)
    assert str(caught.value).startswith(says)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200
    assert caught.value.code == "workload_invalid"
