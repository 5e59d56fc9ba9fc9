"""Words that arrive in parts."""

from __future__ import annotations

WHITESPACE = " \t\r\n"  # of JSON, and all that models put around tags


def partial_match(text: str, word: str, start: int = 0) -> int:
    """The length of the longest end of `text[start:]` that `word` begins with and does not end with."""
    at = text.find(word[0], max(start, len(text) - len(word) + 1))
    while at >= 0 and not word.startswith(text[at:]):
        at = text.find(word[0], at + 1)
    return len(text) - at if at >= 0 else 0
