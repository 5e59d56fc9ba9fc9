"""Hooks of the documentation site: pages that lie at the repository's root, links to files that are no pages, and the
help of all commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import click
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
ROOT_PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "vulnerabilities.md",
}
"""Files at the root that are pages of the site, and where."""
COMMAND_PAGE = "reference/cli.md"
LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the root."""
    for source, page in ROOT_PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    """Point links at pages of the site; a link to any other file of the repository becomes the file's path."""
    if page.file.src_uri == COMMAND_PAGE:
        return "\n\n".join((markdown, *command_help()))
    sources = {page_name: source for source, page_name in ROOT_PAGES.items()}
    at = PurePosixPath(sources.get(page.file.src_uri, f"docs/{page.file.src_uri}")).parent

    def rewrite(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        path = _normalize(at / target)
        uri = ROOT_PAGES.get(path) or path.removeprefix("docs/")
        if path in ROOT_PAGES or (path.startswith("docs/") and files.get_file_from_path(uri) is not None):
            up = "../" * (len(PurePosixPath(page.file.src_uri).parts) - 1)
            return f"[{text}]({up}{uri}{anchor})"
        return f"{text} (`{path}`)" if text.strip("`") != path else f"`{path}`"

    return LINK.sub(rewrite, markdown)


def command_help() -> Iterator[str]:
    """Yield Markdown for each command and its subcommands: its name as a heading, and what --help prints."""
    from inflight.cli import cli

    yield from _help_of(cli, click.Context(cli, info_name="inflight", max_content_width=90, terminal_width=90))


def _help_of(command: click.Command, context: click.Context) -> Iterator[str]:
    yield f"## {context.command_path}\n\n```text\n{command.get_help(context)}\n```"
    for name in command.list_commands(context) if isinstance(command, click.Group) else ():
        if (found := command.get_command(context, name)) is not None:
            below = click.Context(found, context, info_name=name, max_content_width=90, terminal_width=90)
            yield from _help_of(found, below)


def _normalize(path: PurePosixPath) -> str:
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)
