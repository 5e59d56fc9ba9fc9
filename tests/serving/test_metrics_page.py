"""The metrics page is read strictly."""

from __future__ import annotations

import pytest

from tests.serving.metrics_page import parse


def test_the_parser_is_strict() -> None:
    head = "# HELP a b\n# TYPE a gauge\n"
    assert parse(head + 'a{model="m",version="1"} 5').value("a", model="m") == 5
    for line in ("a five", "b 5", 'a{model="m" 5', "a{model=m} 5", "a{} 5", "a", "a 5\na 5", "a 5\n\n"):
        with pytest.raises(AssertionError):
            parse(head + line)
