"""The pages at `/` and `/live`, and `/docs`, which lists the routes of `/openapi.json`."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Callable
from functools import cache, partial
from importlib.resources import files

from inflight.gateway.http import Response
from inflight.gateway.openapi import openapi

_INTRODUCTION = """<h1>OpenAI-compatible API</h1>
<p>Any client of OpenAI works with this server's address and <code>/v1</code>. If the server has API keys, send one as
<code>Authorization: Bearer KEY</code>. The machine-readable description is <code>/openapi.json</code>.</p>
<pre>curl http://127.0.0.1:8080/v1/models
curl http://127.0.0.1:8080/v1/chat/completions -H "Content-Type: application/json" \\
  -d '{"model": "MODEL", "messages": [{"role": "user", "content": "What is tea?"}]}'</pre>
"""


@cache
def static_page(name: str) -> Response:
    """Return a page, which may run only its own script and talk to this gateway alone."""
    text = (files("inflight.gateway") / "static" / name).read_text(encoding="utf-8")
    policy = ["default-src 'none'", "connect-src 'self'", "img-src data:", "base-uri 'none'", "form-action 'none'"]
    policy.append("frame-ancestors 'none'")
    for tag in ("script", "style"):
        element = re.search(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        assert element is not None
        digest = base64.b64encode(hashlib.sha256(element[1].encode()).digest()).decode()
        policy.append(f"{tag}-src 'sha256-{digest}'")
    return _page(text, "; ".join(policy))


@cache
def docs_page() -> Response:
    rows = []
    for path, methods in openapi()["paths"].items():
        for method, operation in methods.items():
            rows.append(
                f"<h2><code>{method.upper()} {html.escape(path)}</code></h2><p>{_code(operation['summary'])}</p>"
            )
            schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            fields = [
                f"<tr><td><code>{html.escape(name)}</code></td><td>{_code(value.get('description', ''))}</td></tr>"
                for name, value in schema.get("properties", {}).items()
            ]
            rows.append(f"<table>{''.join(fields)}</table>" if fields else "")
    style = (
        ":root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;"
        "padding:0 1rem}pre{overflow:auto}td{padding:.2rem .8rem .2rem 0;vertical-align:top}"
    )
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    text = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>inflight: OpenAI-compatible API</title><style>{style}</style>{_INTRODUCTION}{''.join(rows)}</html>"
    )
    return _page(text, f"default-src 'none'; style-src 'sha256-{digest}'")


def _page(text: str, policy: str) -> Response:
    headers = {
        "content-security-policy": policy,
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
        "cache-control": "no-cache",
    }
    return Response(text.encode(), content_type="text/html; charset=utf-8", headers=headers)


def _code(text: str) -> str:
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(text))


PAGES: dict[str, Callable[[], Response]] = {
    "/": partial(static_page, "index.html"),
    "/live": partial(static_page, "live.html"),
    "/docs": docs_page,
}
"""By path. They hold no data, so they need no API key; what they ask for does."""
