"""Files of prompts: the forms of a line, order and rounds, and what is wrong with a file."""

import json
from typing import Any

import pytest

from loadtests.errors import LoadError
from loadtests.workloads.factory import make_workload
from loadtests.workloads.interface import RequestSpec, Workload
from loadtests.workloads.prompt_file import PromptFile
from loadtests.workloads.spec import WorkloadSpec
from tests.fixtures.errors import raises
from tests.loadtests.workloads.example_traces import LONG, nested
from tests.loadtests.workloads.workload_requests import asked

HELLO = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello?"}]


def lines(*rows: Any) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def made(data: bytes, seed: int = 0, **fields: Any) -> Workload:
    return make_workload(WorkloadSpec(prompts="my.jsonl", **fields), {"my.jsonl": data}, seed)


def all_asked(data: bytes, **fields: Any) -> list[list[RequestSpec]]:
    workload = made(data, repeat=False, **fields)
    found: list[list[RequestSpec]] = []
    while (session := workload.session(len(found))) is not None:
        found.append(asked(session))
    return found


@pytest.mark.parametrize("key", ["prompt", "text_input", "text"])
@pytest.mark.parametrize("length", ["max_tokens", "max_completion_tokens", "output_tokens"])
def test_a_line_with_a_text(key: str, length: str) -> None:
    (ask,), (other,) = all_asked(lines({key: "Hello?", length: 7}, {key: "Ünï 🍵"}), output_tokens="5")
    assert (ask.prompt, ask.max_tokens) == ("Hello?", 7)
    assert (other.prompt, other.max_tokens) == ("Ünï 🍵", 5)


def test_chat_messages_are_one_request_as_they_stand() -> None:
    rows = [{"messages": HELLO, "max_tokens": 3}, {"custom_id": "a", "body": {"messages": HELLO, "max_tokens": 4}}]
    found = all_asked(lines(*rows))
    assert [(ask.prompt, ask.max_tokens) for (ask,) in found] == [(HELLO, 3), (HELLO, 4)]


def test_conversations_get_the_servers_answers() -> None:
    share = [
        {"from": "system", "value": "Be kind."},
        {"from": "human", "value": "Hello?"},
        {"from": "gpt", "value": "left out"},
        {"from": "human", "value": "And?"},
    ]
    rows = [{"turns": ["Hello?", "And?"]}, {"id": "1", "conversations": share}]
    for ask_first, ask_second in all_asked(lines(*rows), think_time="2"):
        assert ask_first.prompt[-1] == HELLO[-1]
        assert ask_second.prompt[-2:] == [{"role": "assistant", "content": "yes"}, {"role": "user", "content": "And?"}]
        assert (ask_first.think_time, ask_second.think_time) == (0, 2)
    assert ask_second.prompt[0] == HELLO[0]


def test_a_json_array_will_do_as_well() -> None:
    data = json.dumps([{"prompt": "a"}, {"prompt": "b"}], indent=1).encode()
    assert [ask.prompt for (ask,) in all_asked(data)] == ["a", "b"]


def test_the_form_can_be_chosen() -> None:
    rows = lines({"prompt": "Hello?"}, {"messages": HELLO})
    as_text = [ask.prompt for (ask,) in all_asked(rows, prompt_format="text")]
    as_messages = [ask.prompt for (ask,) in all_asked(rows, prompt_format="messages")]
    assert as_text == ["Hello?", "Be kind.\n\nHello?"]
    assert as_messages == [[HELLO[1]], HELLO]


def test_round_and_round_or_once_in_order_or_shuffled() -> None:
    rows = lines(*({"prompt": str(number)} for number in range(50)))

    def order(**fields: Any) -> list[str]:
        sessions = map(made(rows, **fields).session, range(100))
        return [str(asked(session)[0].prompt) for session in sessions if session is not None]

    in_order = [str(number) for number in range(50)]
    assert order() == in_order * 2
    assert order(repeat=False) == in_order
    shuffled = order(order="shuffled")
    assert sorted(shuffled[:50]) == sorted(shuffled[50:]) == sorted(in_order)
    assert shuffled[:50] != shuffled[50:] != in_order
    assert shuffled == order(order="shuffled")
    assert shuffled != order(order="shuffled", seed=1)


def test_empty_lines_and_a_byte_order_mark_do_no_harm() -> None:
    data = b"\xef\xbb\xbf\n" + lines({"prompt": "a"}) + b"\r\n  \n" + lines({"prompt": "b"}).rstrip()
    assert [ask.prompt for (ask,) in all_asked(data)] == ["a", "b"]


def test_no_answer_is_longer_than_the_maximum() -> None:
    assert all_asked(lines({"prompt": "a", "max_tokens": 900}), max_output_tokens=20)[0][0].max_tokens == 20


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "my.jsonl is empty"),
        (b"\n \n", "my.jsonl is empty"),
        (b"\n" + b'{"prompt": "tr', "my.jsonl, line 2, is truncated or not valid JSON"),
        (b"\n" + b"\n" + b"hello\n", "my.jsonl, line 3, is truncated or not valid JSON"),
        (b"\n" + b'"hello"\n', "my.jsonl, line 2, is not a JSON object"),
        (b"\n" + '{"prompt": "ä"}\n'.encode("latin-1"), "my.jsonl, line 2, is not UTF-8 from its byte 13 on"),
        ('{"prompt": "ä"}\n'.encode("utf-16"), "my.jsonl is UTF-16; write the file in UTF-8"),
        (b"[" * 100_000, "my.jsonl begins as a JSON array but is not valid JSON"),
        (b"\n" + b'{"prompt": ' + b"[" * 100_000, "my.jsonl, line 2, is "),
        (b"\n" + lines({"prompt": 5}), "my.jsonl, line 2, has prompt that is not text but int"),
        (b"\n" + lines({"prompt": ""}), "my.jsonl, line 2, has prompt that is empty"),
        (b"\n" + lines({"prompt": "a\0"}), "my.jsonl, line 2, has prompt with a NUL"),
        (b"\n" + lines({"prompt": "\ud800"}), "my.jsonl, line 2, has prompt with half a surrogate pair"),
        (b"\n" + lines({"question": "a"}), "my.jsonl, line 2, has no prompt: it needs one of prompt, text_input"),
        (b"\n" + lines({"prompt": "a", "max_tokens": 0}), "my.jsonl, line 2, has max_tokens 0"),
        (b"\n" + lines({"prompt": "a", "max_tokens": "9"}), "my.jsonl, line 2, has max_tokens '9'"),
        (b"\n" + lines({"prompt": "a", "max_tokens": 10**400}), "my.jsonl, line 2, has max_tokens 1000"),
        (b"\n" + f'{{"max_tokens": {LONG}}}'.encode(), "my.jsonl, line 2, can't be read: a number has thousands of"),
        (f'[{{"max_tokens": {LONG}}}]'.encode(), "my.jsonl can't be read: a number has thousands of digits"),
        (b"\n" + lines({"messages": [{"role": "user", "content": nested(200)}]}), "my.jsonl, line 2, is nested too"),
        (b"\n" + lines({"messages": []}), "my.jsonl, line 2, has messages that is not a list"),
        (b"\n" + lines({"messages": [{"content": "a"}]}), "my.jsonl, line 2, has a message without a role"),
        (b"\n" + lines({"turns": "a"}), "my.jsonl, line 2, has turns that is not a list"),
        (b"\n" + lines({"turns": ["a", None]}), "my.jsonl, line 2, has a turn that is not text"),
        (b"\n" + lines({"conversations": [{"from": "x"}]}), "my.jsonl, line 2, has a part of a conversation whose"),
        (
            b"\n" + lines({"conversations": [{"from": "gpt", "value": "a"}]}),
            "my.jsonl, line 2, has a conversation without",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_one_sentence_with_the_line(data: bytes, says: str) -> None:
    with pytest.raises(LoadError) as caught:
        made(data)
    assert str(caught.value).startswith(says)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200
    assert caught.value.code == "workload_invalid"


def test_what_can_not_be_sent_as_text_is_told_at_once() -> None:
    parts = {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}
    assert all_asked(lines(parts))[0][0].prompt == parts["messages"]
    with raises(LoadError, "workload_invalid", naming="line 2"):
        made(b"\n" + lines(parts), prompt_format="text")


def test_lines_that_can_not_be_sent_are_left_out_and_counted() -> None:
    bad: list[list[Any]] = [[], [{"from": "human", "value": ""}], [{"from": "x"}], [{"from": "gpt", "value": "a"}]]
    rows = lines({"prompt": "a"}, *({"conversations": each} for each in bad), {"prompt": "b"}) + b'5\n{"prompt": "tr\n'
    assert [ask.prompt for (ask,) in all_asked(rows)] == ["a", "b"]
    workload = made(rows, order="shuffled")
    assert isinstance(workload, PromptFile)
    assert workload.lines.skipped.startswith("6 of 8 ")
    assert "line 2" in workload.lines.skipped
