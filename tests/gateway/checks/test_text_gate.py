"""What rules find in texts that arrive in pieces, what they leave, and how much they hold back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from inflight.gateway.checks.patterns import checked
from inflight.gateway.checks.specs import CheckSpec, stage_of
from inflight.gateway.checks.text_gate import Rules, TextGate
from tests.gateway.checks.planted import CHECKS, Planted, planted

_LIST = TypeAdapter(tuple[CheckSpec, ...])


def rules_of(*checks: dict[str, object]) -> Rules:
    rules = stage_of(_LIST.validate_python(checks), "after", "").rules
    assert rules is not None
    return rules


RULES = rules_of(*CHECKS)


def passed(pieces: Iterable[str], rules: Rules = RULES, in_json: bool = False) -> str:
    gate = TextGate(rules, lambda rule: None, in_json)
    return "".join(map(gate.feed, pieces)) + gate.feed("", final=True)


def check_splits(each: Planted, in_json: bool) -> None:
    """Every way to cut the text in two leaves the same of it as the whole text, and so does each character alone."""
    text = json.dumps({"a": each.text, "n": 1}, ensure_ascii=len(each.text) % 2 == 0) if in_json else each.text
    left = passed([text], in_json=in_json)
    assert not each.is_in(json.loads(left)["a"] if in_json else left), each
    assert passed(text, in_json=in_json) == left
    for at in range(1, len(text)):
        assert passed((text[:at], text[at:]), in_json=in_json) == left, (each, at)


@pytest.mark.parametrize("in_json", [False, True])
def test_what_is_planted_never_passes_however_it_is_split(in_json: bool) -> None:
    for each in planted(50):
        check_splits(each, in_json)


@pytest.mark.slow
@pytest.mark.parametrize("in_json", [False, True])
def test_two_thousand_planted_texts_never_pass(in_json: bool) -> None:
    for each in planted(2000, seed=2):
        check_splits(each, in_json)


@given(st.lists(st.sampled_from([*(each.text for each in planted(20)), " ", "1", "\u0301", "\\u00", '"', "\ud83d"])))
def test_pieces_leave_what_the_whole_text_leaves(pieces: list[str]) -> None:
    for in_json in (False, True):
        assert passed(pieces, in_json=in_json) == passed(["".join(pieces)], in_json=in_json)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("Pay 4111 1111 1111 1111 now", "Pay [card] now"),
        ("Pay 4111 1111 1111 1112 now", "Pay 4111 1111 1111 1112 now"),
        (
            "IBAN GB82 WEST 1234 5698 7654 32, not GB81 WEST 1234 5698 7654 32",
            "IBAN [iban], not GB81 WEST 1234 5698 7654 32",
        ),
        (
            "f\u200bor\u2060bid\u00adden is ｆｏｒｂｉｄｄｅｎ, forbiddenly is not",
            "[words] is [words], forbiddenly is not",
        ),
        ("e\u0301tat, \u00e9tat, etat", "[words], [words], etat"),
        ("これは機密です", "これは[words]です"),
        ("mail a@b.example or a@b", "mail [email] or a@b"),
        ("call +49 (30) 123-4567 in 2024", "call [phone] in 2024"),
        ("12345678 and 2024-05-06 12:30 stay", "12345678 and 2024-05-06 12:30 stay"),
        *(
            (f"Project{space}Falcon", "[words]")
            for space in ("\n  ", "\u2028", "\x85", "\x0b", "\x1f", " " * 5, "\t " * 999)
        ),
        ("  4         5", "  4         5"),
        ("4111111111111111USD", "[card]USD"),
        ("4111 1111 1111 1111_ or 4111111111111111é", "[card]_ or [card]é"),
        ("415-555-2671ext, +14155552671x5", "[phone]ext, [phone]x5"),
    ],
)
def test_a_match_is_replaced_in_the_text_as_it_came(text: str, left: str) -> None:
    assert passed([text]) == left


@pytest.mark.parametrize(
    ("word", "texts"),
    [
        ("hemlock", ("hem\0lock", "hem\u2065lock", "hem\ufff8lock", "HEMLOC\u212a")),
        ("Vi\u1ec7t", ("Vi\u00ea\u0323t", "Vi\u1eb9\u0302t", "Vie\u0302\u0323t", "VI\u1ec6T")),
        ("Vie\u0302\u0323t", ("Vi\u1ec7t", "Vie\u0323\u0302t")),
        ("Teestra\u00dfe", ("TEESTRASSE", "teestra\u00dfe", "TEESTRA\u1e9eE")),
        ("TEESTRASSE", ("teestra\u00dfe", "TEESTRA\u1e9eE", "Teestrasse")),
    ],
)
def test_a_word_is_found_however_it_is_written(word: str, texts: Sequence[str]) -> None:
    rules = rules_of({"kind": "deny", "words": [word], "action": "redact"})
    for in_json in (False, True):
        assert {passed(text, rules, in_json) for text in texts} == {"[deny]" if not in_json else '"[deny]"'}


def test_the_longest_match_that_is_whole_is_replaced() -> None:
    rules = rules_of({"kind": "deny", "words": ["tea", "tea time"], "action": "redact"})
    assert passed(["tea timer, tea time, teas"], rules) == "[deny] timer, [deny], teas"


def test_what_is_redacted_in_json_leaves_json() -> None:
    text = '{"card": 4111111111111111, "a": "\\u0000", "b": "\\u0066orbid\\u0064en \\"tea\\"", "n": [4111111111111111]}'
    left = {"card": "[card]", "a": "\0", "b": '[words] "tea"', "n": ["[card]"]}
    assert json.loads(passed(text, in_json=True)) == left


@pytest.mark.parametrize(
    ("pieces", "held"),
    [
        (["Hello. "], 0),
        (["for"], 3),
        (["a forb", "idde"], 8),
        (["forb", "id you"], 0),
        (["forbidden"], 9),
        (["4" * 2000], 19),
        (["card 4111 1111"], 9),
        (["a", " " * 3, " " * 100], 99),
        (["a", " " * 3, " " * 100, "b"], 0),
    ],
)
def test_no_more_is_held_back_than_the_beginning_of_a_match(pieces: list[str], held: int) -> None:
    rules = rules_of({"kind": "deny", "words": ["forbidden"]}, {"kind": "pii", "name": "p", "types": ["card"]})
    gate = TextGate(rules, lambda rule: None)
    out = "".join(map(gate.feed, pieces))
    expected = "".join(pieces)
    assert expected.startswith(out)
    assert len(expected) - len(out) == held


def test_text_before_something_else_comes_out_at_once_and_a_match_that_goes_on_is_cut() -> None:
    gate = TextGate(RULES, lambda rule: None)
    assert gate.feed("a forbid", final=True) == "a forbid"
    assert gate.feed("den b") + gate.feed("", final=True) == "[words] b"


@pytest.mark.parametrize(
    "pattern",
    [
        "a*b",
        "a+",
        "(?=a)b",
        r"(a)\1",
        "^a",
        "a|",
        ".?",
        r"\W{0,3}",
        r"\b|a",
        "",
        "(",
        "a)|(b",
        "a{1001}",
        "a$",
        "[é]",
        "(a{0,99}){0,99}",
        "a{2,1}",
    ],
)
def test_a_pattern_that_has_no_bounds_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        checked(pattern)
    assert "(b" not in str(refused.value)
