"""A self-contained HTML document. It loads nothing from a network, and only the chart library from another file if
several pages share it, as those of a sweep do."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs, get_plotlyjs_version

from loadtests.report.chart import Chart
from loadtests.report.formats import printable

_TEMPLATES = Path(__file__).parent / "templates"


CHART_LIBRARY = f"plotly-{get_plotlyjs_version()}.min.js"
"""The name of the chart library's file if pages share it."""


def write_library(folder: Path) -> None:
    """Write the chart library to a folder, for pages in or below it."""
    if not (folder / CHART_LIBRARY).exists():
        (folder / CHART_LIBRARY).write_text(_plotly(), encoding="utf-8")


def document(
    template: str,
    title: str,
    charts: Sequence[Chart],
    library: str = "",
    templates: Path = _TEMPLATES,
    **content: Any,
) -> str:
    """Return the page of `template` with these charts and, if there are any, plotly.js.

    With `library`, a path relative to the page, plotly.js is loaded from there. `templates` is the folder of
    `template`, which may extend those here.
    """
    figures = json.dumps([chart.figure() for chart in charts], allow_nan=False, separators=(",", ":"))
    plotly, script = "" if library else _plotly(), _file("charts.js")
    nonce = secrets.token_urlsafe(16)
    return (
        _environment(templates)
        .get_template(template)
        .render(
            title=title,
            policy=_policy(nonce, script) if library else _policy("", plotly, script),
            library=library,
            nonce=nonce,
            style=Markup(_file("style.css")),
            figures=Markup(figures.replace("<", "\\u003c")) if charts else None,
            plotly=Markup(plotly),
            script=Markup(script),
            **content,
        )
    )


@cache
def _plotly() -> str:
    """Return the whole of plotly.js (4.8 MB), since its package has no smaller build. It makes no network requests."""
    script: str = get_plotlyjs()
    return script


def _policy(nonce: str, *scripts: str) -> str:
    """Return the page's content security policy: run only these scripts, and load only the script with the nonce. (A
    hash would be stricter, but Chromium does not support hashes for scripts from files.)"""
    named = f" 'nonce-{nonce}'" if nonce else ""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    hashes = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"default-src 'none'; script-src {hashes}{named}; style-src 'unsafe-inline'; img-src data: blob:"


def _file(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")


@cache
def _environment(templates: Path) -> Environment:
    return Environment(
        loader=FileSystemLoader([templates, _TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
    )
