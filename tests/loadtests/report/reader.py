"""Reads a page as a person does who looks at its words only."""

from __future__ import annotations

from html.parser import HTMLParser


class Reader(HTMLParser):
    """The words of a page, and the addresses that it names."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.addresses: list[str] = []
        self.tags: list[str] = []
        self.feed(page)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attributes if name in ("src", "href", "action", "srcset")]

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] not in ("script", "style"):
            self.words.append(data)

    def handle_endtag(self, tag: str) -> None:
        if self.tags:
            self.tags[-1] = ""  # what follows a script's end is text again


def read(page: str) -> str:
    """The words of a page, with one space between them."""
    return Reader(page).text
