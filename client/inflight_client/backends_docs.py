"""The table of dialects in docs/backends.md: `python -m inflight_client.backends_docs` prints it."""

from __future__ import annotations

from collections.abc import Iterable

from inflight_client.dialects import DIALECTS, FIELDS

_ROUTES = ("chat/completions", "completions", "embeddings", "rerank", "classify", "responses")
_SHOWN = {"yes": "yes", "no": "", "chat": "chat", "text": "text"}


def tables() -> str:
    """Return what each kind of server has, and what it does without saying so, as Markdown."""
    others = [name for name in DIALECTS if name != "inflight"]
    places = [list(DIALECTS).index(name) for name in others]
    rows = [["", *(f"`{name}`" for name in others)], ["---"] * (len(others) + 1)]
    rows += [
        [f"`/v1/{route}`", *("yes" if f"/v1/{route}" in DIALECTS[name].paths else "" for name in others)]
        for route in _ROUTES
    ]
    rows += [[f"`{field}`", *(_cell(cells[place]) for place in places)] for field, cells in FIELDS.items()]
    for kind in ("json_object", "json_schema", "regex", "ebnf"):
        lacking = [DIALECTS[name].guides.get(kind, "") is None for name in others]
        rows.append([f"format `{kind}`", *("" if lacks else "yes" for lacks in lacking)])
    about = [["dialect", "server", "health", "what it does silently"], ["---"] * 4]
    about += [
        [f"`{name}`", each.title, f"`{each.health}`" if each.health else "its list of models", each.silently]
        for name, each in DIALECTS.items()
    ]
    return _lines(rows) + "\n" + _lines(about)


def _cell(cell: str) -> str:
    return _SHOWN.get(cell, f"`{cell}`")


def _lines(rows: Iterable[list[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
    print(tables(), end="")
