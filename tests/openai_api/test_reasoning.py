"""Reasoning and content are separated however the answer is split into chunks."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.openai_api.events import ReasoningDelta, TextDelta
from inflight.openai_api.reasoning import REASONING, THINK, ReasoningParser, ReasoningTags, detect_reasoning
from tests.openai_api.tool_calls.answers import sizes, split


def read(chunks: Iterable[str], begins_inside: bool) -> tuple[str, str]:
    """The reasoning and the content of an answer."""
    parser = ReasoningParser(begins_inside)
    deltas = [delta for chunk in chunks for delta in parser.feed(chunk)] + parser.finish()
    reasons = [isinstance(delta, ReasoningDelta) for delta in deltas]
    assert reasons == sorted(reasons, reverse=True)
    assert all(isinstance(delta, ReasoningDelta | TextDelta) and delta.text for delta in deltas)
    return (
        "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta)),
        "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)),
    )


@pytest.mark.parametrize(
    ("answer", "begins_inside", "reasoning", "content"),
    [
        ("", False, "", ""),
        ("Hi", False, "", "Hi"),
        (" \n", False, "", " \n"),
        (" <thin", False, "", " <thin"),
        ("<think>\n\na\n\nb\n</think>\n\nc\n", False, "a\n\nb", "c\n"),
        ("\n<think>a</think>b", False, "a", "b"),
        ("<think>a < b </thin", False, "a < b </thin", ""),
        ("<think></think>b", False, "", "b"),
        ("Hi <think>a</think>", False, "", "Hi <think>a</think>"),
        ("a</think>b", False, "", "a</think>b"),
        ("a</think>b", True, "a", "b"),
        ("\na</think><think>b</think>", True, "a", "<think>b</think>"),
        ("<think>\na</think>b", True, "a", "b"),
        ("<think>a\n", False, "a\n", ""),
        ("a<think>b", True, "a<think>b", ""),
        ("</think>b", True, "", "b"),
    ],
)
def test_examples(answer: str, begins_inside: bool, reasoning: str, content: str) -> None:
    assert read([answer], begins_inside) == (reasoning, content)
    for at in range(len(answer) + 1):
        assert read([answer[:at], "", answer[at:]], begins_inside) == (reasoning, content)
    assert read(answer, begins_inside) == (reasoning, content)


PIECES = ("<think>", "</think>", "<", "/", "thin", "k>", " ", "\n", "京")


@given(
    answer=st.lists(st.sampled_from(PIECES), max_size=12).map("".join),
    begins_inside=st.booleans(),
    sizes=sizes,
)
def test_any_chunks_give_the_same(answer: str, begins_inside: bool, sizes: list[int]) -> None:
    assert read(split(answer, sizes), begins_inside) == read([answer], begins_inside)


def test_only_what_may_be_a_tag_is_held_back() -> None:
    parser = ReasoningParser(inside=True)
    assert parser.feed("a </th") == [ReasoningDelta("a ")]
    assert parser.feed("e </think>b") == [ReasoningDelta("</the "), TextDelta("b")]
    assert parser.feed("</think>") == [TextDelta("</think>")]
    assert parser.finish() == []


@pytest.mark.parametrize(
    ("template", "tags"),
    [
        ("{{ message.content.split('</think>')[-1] }}", THINK),
        ("{{ '<｜Assistant｜><think>\\n' }}", THINK),
        *((f"{{{{ '{tags.start}' + reasoning + '{tags.end}' }}}}", tags) for tags in REASONING.values()),
        ("{% set start = '<think{}>'.format(':opensource') %}", REASONING["hunyuan"]),
        ("{{ message.content }}", None),
    ],
)
def test_the_tags_are_those_of_the_template(template: str, tags: ReasoningTags | None) -> None:
    assert detect_reasoning(template) == tags


@pytest.mark.parametrize("tags", REASONING.values())
def test_other_tags_are_read(tags: ReasoningTags) -> None:
    parser = ReasoningParser(tags=tags)
    assert parser.feed(f"{tags.start}\na\n{tags.end}b") == [ReasoningDelta("a"), TextDelta("b")]
