"""Formats and reasoning tags are found in the kinds of templates that checkpoints come with."""

from __future__ import annotations

import pytest

from inflight.openai_api.tool_calls.detect import FORMATS, ReasoningTags, detect_reasoning, detect_tool_format

QWEN = r"""{{- "Write json within <tool_call></tool_call>:\n<tool_call>\n{\"name\": <n>, \"arguments\": <a>}" }}"""
HERMES = """{{- '\\n<tool_call>\\n{"name": "' + call.name + '", "arguments": ' + call.arguments|tojson }}"""
QWEN_CODER = """{{- '<tool_call>\\n<function=' + call.name + '>\\n<parameter="arguments">' }}"""
GLM = """{{- '<tool_call>' + name + '\\n<arg_key>' + "arguments" + '</arg_key>' }}"""
LLAMA3 = "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] }}"
LLAMA31 = LLAMA3 + """{{- 'Respond in the format {"name": function name, "parameters": dictionary}.' }}"""
MISTRAL = """{{- "[TOOL_CALLS] [" }}{{- '{"name": "' + tool.name + '", "arguments": ' }}"""
CHATML = "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (QWEN, "hermes"),
        (HERMES, "hermes"),
        (LLAMA31, "llama3_json"),
        (MISTRAL, "mistral"),
        (QWEN_CODER, None),
        (GLM, None),
        (LLAMA3, None),
        (CHATML, None),
        ("", None),
    ],
)
def test_tool_format(template: str, name: str | None) -> None:
    assert detect_tool_format(template) == name
    assert name is None or name in FORMATS


PROMPT = "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
STRIPPED = "{{ message.content.split('</think>')[-1] }}"
EMPTY = "{%- if enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}"
OPENED = PROMPT + "{{- '<think>\\n' }}{%- endif %}"


@pytest.mark.parametrize(
    ("template", "begins_inside"),
    [
        (STRIPPED + PROMPT, False),
        ("{{ '<think>' + reasoning + '</think>' }}" + PROMPT, False),
        (STRIPPED + PROMPT + EMPTY + "{%- endif %}{%- endif %}", False),
        (STRIPPED + OPENED, True),
        (PROMPT + EMPTY + "{%- else %}{{- '<think>\\n' }}{%- endif %}{%- endif %}", True),
        (OPENED.replace("\\n", "\n"), True),
    ],
)
def test_reasoning(template: str, begins_inside: bool) -> None:
    assert detect_reasoning(template) == ReasoningTags("<think>", "</think>", begins_inside)


def test_other_reasoning_tags() -> None:
    assert detect_reasoning("[THINK]{{ reasoning }}[/THINK]") == ReasoningTags("[THINK]", "[/THINK]", False)
    assert detect_reasoning(CHATML + PROMPT) is None


@pytest.mark.parametrize(("prompt", "inside"), [("a<think>\n", True), ("<think>\n\n</think>\n\n", False), ("a", False)])
def test_a_prompt_opens_reasoning(prompt: str, inside: bool) -> None:
    assert ReasoningTags("<think>", "</think>", True).opened_by(prompt) == inside
