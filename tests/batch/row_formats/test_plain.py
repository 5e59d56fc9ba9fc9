"""Plain rows: what they ask for, what is written of them, and what makes a row a dead letter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from inflight_client import InflightError

from inflight.batch.errors import BatchError
from inflight.batch.job.rows import InvalidRow, Row, RowStatus
from tests.batch.row_formats.parsing import answer, asked, prompted, refused, rows_in, rows_of
from tests.fixtures.errors import raises

_USER = {"role": "user", "content": "Tea?"}


def test_a_prompt_is_asked_and_its_answer_has_the_row_s_id(tmp_path: Path) -> None:
    form, rows = rows_of(tmp_path, {"sku": 7, "prompt": "Tea?", "price": 1.5}, id="sku", keep=("price",))
    row = asked(rows[0])
    assert (prompted(row).prompt, prompted(row).max_tokens, row.id) == ("Tea?", 128, "7")
    outcome = form.format_answer(row, answer(), 2)
    assert json.loads(outcome.text) == {
        "id": 7, "text": "Green tea.", "finish_reason": "stop", "input_tokens": 7, "output_tokens": 3, "price": 1.5,
    }  # fmt: skip
    assert (outcome.status, outcome.tokens, outcome.attempts) == (RowStatus.OK, (7, 3), 2)


def test_lines_are_the_same_however_often_a_row_was_asked(tmp_path: Path) -> None:
    form, rows = rows_of(tmp_path, {"prompt": "Tea?"})
    error = InflightError("too many requests wait already", "overloaded")
    assert form.format_answer(asked(rows[0]), answer(), 1).text == form.format_answer(asked(rows[0]), answer(), 9).text
    assert form.format_failure(asked(rows[0]), error, 1).text == form.format_failure(asked(rows[0]), error, 9).text


def test_without_a_column_of_ids_rows_are_numbered_from_one(tmp_path: Path) -> None:
    form, rows = rows_of(tmp_path, {"prompt": "a"}, {"prompt": "b"})
    assert [json.loads(form.format_answer(asked(row), answer(), 1).text)["id"] for row in rows] == [1, 2]


def test_what_failed_has_its_code_and_place(tmp_path: Path) -> None:
    form, rows = rows_of(tmp_path, {"id": "a", "prompt": "Tea?"}, id="id")
    failed = form.format_failure(asked(rows[0]), InflightError("too long by far", "prompt_too_long"), 1)
    line = {"id": "a", "line": 1, "code": "prompt_too_long", "message": "too long by far"}
    assert (json.loads(failed.text), failed.status) == (line, RowStatus.ERROR)
    killer = form.format_failure(asked(rows[0]), InflightError("engines died", "row_crashed_engine"), 3)
    assert (json.loads(killer.text)["code"], killer.status) == ("row_crashed_engine", RowStatus.DEAD)


def test_conversations_are_asked_as_they_are(tmp_path: Path) -> None:
    parts = {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    _, rows = rows_of(tmp_path, {"messages": [parts, _USER]}, {"messages": json.dumps([_USER])})
    assert prompted(rows[0]).prompt == [{"role": "system", "content": "a\nb"}, _USER]
    assert prompted(rows[1]).prompt == [_USER]


def test_chat_and_a_system_message_make_a_conversation_of_a_prompt(tmp_path: Path) -> None:
    _, rows = rows_of(tmp_path, {"prompt": "Tea?"}, chat=True)
    assert prompted(rows[0]).prompt == [_USER]
    _, rows = rows_of(tmp_path, {"prompt": "Tea?", "tongue": "French"}, system="Answer in {{ tongue }}.")
    assert prompted(rows[0]).prompt == [{"role": "system", "content": "Answer in French."}, _USER]


def test_a_template_makes_the_prompt_of_columns(tmp_path: Path) -> None:
    template = "{{ name }}: {{ price | round(1) }} {{ row['two words'] }}\n"
    _, rows = rows_of(tmp_path, {"name": "Tea", "price": 1.25, "two words": "x"}, template=template)
    assert prompted(rows[0]).prompt == "Tea: 1.2 x"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"name": "Tea"}, "uses a value that the row lacks: 'price' is undefined; it has name"),
        ({"name": "Tea", "price": None}, "a value that is null"),
        ({"name": "Tea", "price": "dear"}, "can't be filled in"),
    ],
)
def test_a_row_without_the_template_s_values_is_dead(tmp_path: Path, values: Any, words: str) -> None:
    _, rows = rows_of(tmp_path, values, template="{{ name }}: {{ price }}{{ price + 1 }}")
    fault = refused(rows[0])
    assert (fault.status, fault.code) == (RowStatus.DEAD, "row_invalid")
    assert words in fault.message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"template": "{{ name"}, ("the template", "line 1")),
        ({"system": "{% if %}"}, "the system message"),
    ],
)
def test_options_that_don_t_fit_are_refused_before_anything_is_asked(tmp_path: Path, options: Any, words: str) -> None:
    with raises(BatchError, "input_invalid", naming=words):
        rows_of(tmp_path, {"prompt": "Tea?"}, **options)


def test_templates_can_t_leave_their_sandbox(tmp_path: Path) -> None:
    _, rows = rows_of(tmp_path, {"name": "Tea"}, template="{{ name.__class__.__mro__ }}")
    assert "unsafe" in refused(rows[0]).message


def test_a_column_by_a_parameter_s_name_holds_for_its_row(tmp_path: Path) -> None:
    values = {"prompt": "Tea?", "max_tokens": 5, "temperature": 0.5, "stop": ["."], "seed": 3, "ignore_eos": True}
    defaults = {"temperature": 1.0, "top_k": 4}
    _, rows = rows_of(tmp_path, values, {"prompt": "Tea?", "temperature": None}, defaults=defaults)
    ask = prompted(rows[0])
    assert (ask.max_tokens, ask.sampling.temperature, ask.sampling.top_k, ask.sampling.stop) == (5, 0.5, 4, (".",))
    assert (ask.sampling.seed, ask.sampling.end_id) == (3, -1)
    assert prompted(rows[1]).sampling.temperature == 1.0
    _, rows = rows_of(tmp_path, {"temperature": 31, "town": "Rome"}, template="{{ town }}: {{ temperature }}")
    assert prompted(rows[0]).sampling.temperature is None


@pytest.mark.parametrize(
    ("values", "code", "words"),
    [
        ({"prompt": ""}, "empty_prompt", "prompt is empty"),
        ({"prompt": "a\0b"}, "invalid_text", "NUL"),
        ({"prompt": None}, "invalid_text", "must be a text"),
        ({"prompt": 7}, "invalid_text", "must be a text"),
        ({"prompt": "a", "messages": [_USER]}, "row_invalid", "give one of them"),
        ({"text": "a"}, "row_invalid", "neither 'prompt' nor 'messages', but id, text"),
        ({"prompt": "a", "max_tokens": 0}, "invalid_parameter", "max_tokens is 0"),
        ({"prompt": "a", "max_tokens": 1.5}, "invalid_parameter", "max_tokens is 1.5"),
        ({"prompt": "a", "seed": 2**80}, "invalid_parameter", "seed is"),
        ({"prompt": "a", "stop": [""]}, "invalid_parameter", "stop holds ''"),
        ({"prompt": "a", "ignore_eos": "yes"}, "invalid_parameter", "ignore_eos is 'yes'"),
        ({"messages": []}, "invalid_messages", "send at least one"),
        ({"messages": {}}, "invalid_messages", "must be a list"),
        ({"messages": "Tea?"}, "invalid_messages", "not valid JSON"),
        ({"messages": ["Tea?"]}, "invalid_messages", "must be an object"),
        ({"messages": [{"content": "a"}]}, "invalid_messages", "has no role"),
        ({"messages": [{"role": "user"}]}, "invalid_messages", "must be a text"),
        ({"messages": [{"role": "user", "content": "a\0"}]}, "invalid_text", "NUL"),
        ({"messages": [_USER | {"x": json.loads("[" * 99 + "]" * 99)}]}, "invalid_messages", "nested more than"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "unsupported_input", "only text"),
        ({"prompt": "a", "kept": json.loads("[" * 300 + "]" * 300)}, "row_invalid", "can't be written as JSON"),
    ],
)
def test_a_row_that_is_no_request_is_dead(tmp_path: Path, values: Any, code: str, words: str) -> None:
    form, rows = rows_of(tmp_path, {"id": "a", **values}, id="id", keep=("kept",))
    fault = refused(rows[0])
    assert (fault.code, fault.status, fault.id) == (code, RowStatus.DEAD, "a")
    assert words in fault.message
    assert json.loads(form.format_invalid(fault).text) == {"line": 1, "id": "a", "code": code, "message": fault.message}


@pytest.mark.parametrize("value", [None, "", "x" * 513, "a\0b", 1.5, 2**70, True, ["a"]])
def test_a_row_without_a_usable_id_is_dead(tmp_path: Path, value: Any) -> None:
    form, rows = rows_of(tmp_path, {"id": value, "prompt": "Tea?"}, {"prompt": "Tea?"}, id="id")
    for line, row in enumerate(rows, 1):
        assert json.loads(form.format_invalid(refused(row)).text).items() >= {"line": line, "id": None}.items()
        assert " id" in refused(row).message


def test_a_line_that_can_t_be_read_is_dead(tmp_path: Path) -> None:
    form, rows = rows_of(tmp_path, {"prompt": "Tea?"}, b'{"prompt": "Tea', {"prompt": "Tea?"})
    assert "not JSON" in json.loads(form.format_invalid(refused(rows[1])).text)["message"]
    asked(rows[2])


def test_a_table_without_the_column_of_the_prompts_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("id,name\n1,Tea\n")
    with raises(BatchError, "input_not_found", naming="'price', 'size'"):
        rows_in(path, prompt="name", keep=("price", "size"))
    _, rows = rows_in(path, template="{{ name }}", id="id")
    assert (prompted(rows[0]).prompt, asked(rows[0]).id) == ("Tea", "1")


def test_only_rows_whose_kept_values_no_database_stores_are_dead(tmp_path: Path) -> None:
    values = [{"prompt": "Tea?", "x": x} for x in ("a\0", {"y": ["\\\0"]}, "\\u0000", {"\\\\u0000": 1})]
    _, rows = rows_of(tmp_path, *values, keep=("x",), output="sqlite:///shop.db")
    assert [row.code if isinstance(row, InvalidRow) else "" for row in rows] == ["row_invalid", "row_invalid", "", ""]
    assert all(isinstance(row, Row) for row in rows_of(tmp_path, *values, keep=("x",))[1])
