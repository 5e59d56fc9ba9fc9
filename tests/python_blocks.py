"""The Python that stands in a document, run against a server as a reader would run it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from inflight.deploy.server import Server

_BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def python_blocks(document: Path) -> list[tuple[int, str]]:
    """Each block with the number of its first line."""
    text = document.read_text(encoding="utf-8")
    return [(text.count("\n", 0, found.start()) + 2, found[1]) for found in _BLOCK.finditer(text)]


def run_block(code: str, document: Path, line: int, server: Server) -> dict[str, Any]:
    """Run one by itself, with the server where the document has the default ports; its names when it is through."""
    for default, there in (
        ("127.0.0.1:8001", server.grpc_address),
        ("127.0.0.1:8000", server.http_address),
        ("127.0.0.1:8002", server.metrics_address),
    ):
        code = code.replace(default, there)
    names: dict[str, Any] = {"__name__": "__main__"}
    # A failure names the line of the document.
    exec(compile("\n" * (line - 1) + code, str(document), "exec"), names)
    return names
