"""Finds the format of tool calls in a checkpoint's chat template."""

from __future__ import annotations

import re

from inflight.openai_api.tool_calls.hermes import HermesParser
from inflight.openai_api.tool_calls.llama3_json import Llama3JsonParser
from inflight.openai_api.tool_calls.mistral import MistralParser
from inflight.openai_api.tool_calls.parser import ToolCallParser

FORMATS: dict[str, type[ToolCallParser]] = {
    "hermes": HermesParser,
    "llama3_json": Llama3JsonParser,
    "mistral": MistralParser,
}

# Qwen3-Coder, GLM-4.5 and MiniMax M3 write no JSON between the same tags.
_NO_JSON = re.compile(r"<function=|<parameter=|<arg_key>|<invoke name=")


def detect_format(template: str) -> str | None:
    """Return the name in `FORMATS` of the format that a chat template asks for; None if it is unknown."""
    if "[TOOL_CALLS]" in template:
        return "mistral"
    if "<tool_call>" in template:  # but Apriel asks for a list between <tool_calls>
        return "hermes" if not _NO_JSON.search(template) and "<tool_calls>" not in template else None
    if "<|start_header_id|>" in template and re.search(r'\\?"parameters\\?"', template):
        return "llama3_json"
    return None
