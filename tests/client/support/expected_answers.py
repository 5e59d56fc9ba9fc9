"""What the client's tests ask the fake engine, and what it must say: the prompt's tokens, over and over."""

from __future__ import annotations

import functools
import json
import urllib.request

from inflight.deploy.server.server import Server

PROMPT = "hello there"
LONG = 3000
"""Tokens of an answer that no test waits for the end of: a minute."""
PREFILL_SECONDS_PER_TOKEN = 0.002
LATE_PROMPT = "far too much to read " * 16
"""Its first token takes half a second and more."""
TOO_LONG = "far too much to read " * 2000
"""More than the engine takes."""


def expected(server: Server, max_tokens: int, prompt: str = PROMPT) -> str:
    """The answer as the server sends it without our client."""
    return _expected(server.http_address, max_tokens, prompt)


@functools.cache
def _expected(address: str, max_tokens: int, prompt: str) -> str:
    asked = {"text_input": prompt, "max_tokens": max_tokens, "exclude_input_in_output": True}
    body = json.dumps(asked).encode()
    request = urllib.request.Request(f"http://{address}/v2/models/ensemble/generate", body)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(json.load(answer)["text_output"])
