"""Formats are found in the kinds of templates that checkpoints come with."""

from __future__ import annotations

import pytest

from inflight.openai_api.tool_calls.detect import FORMATS, detect_format

QWEN = r"""{{- "Write json within <tool_call></tool_call>:\n<tool_call>\n{\"name\": <n>, \"arguments\": <a>}" }}"""
HERMES = """{{- '\\n<tool_call>\\n{"name": "' + call.name + '", "arguments": ' + call.arguments|tojson }}"""
QWEN_CODER = """{{- '<tool_call>\\n<function=' + call.name + '>\\n<parameter="arguments">' }}"""
GLM = """{{- '<tool_call>' + name + '\\n<arg_key>' + "arguments" + '</arg_key>' }}"""
LLAMA3 = "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] }}"
LLAMA31 = LLAMA3 + """{{- 'Respond in the format {"name": function name, "parameters": dictionary}.' }}"""
LLAMA32 = LLAMA3 + r"""{{- "Respond in the format {\"name\": function name, \"parameters\": dictionary}." }}"""
HERMES_ON_LLAMA3 = LLAMA31 + HERMES
MISTRAL = """{{- "[TOOL_CALLS] [" }}{{- '{"name": "' + tool.name + '", "arguments": ' }}"""
MISTRAL_V7 = """{{- "[TOOL_CALLS][" }}{{- '"id": "' + tool_call.id + '"}' }}"""
MISTRAL_V11 = """{{- "[TOOL_CALLS]" + tool.name + "[CALL_ID]" + tool.id + "[ARGS]" + arguments }}"""
DEEPSEEK_R1 = "{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['type']}}{{'<｜Assistant｜><think>\\n'}}"
APRIEL = "{{ '<tool_calls>[{\"name\": ... }]</tool_calls>; never <tool_call>' }}"
MINIMAX = """{{ ']<]minimax[>[<tool_call>' }}<invoke name="{{ call.name }}">"""
PHI = """<|system|><|tool|>[{"name": "f", "parameters": {}}]<|/tool|><|end|>"""
CHATML = "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (QWEN, "hermes"),
        (HERMES, "hermes"),
        (HERMES_ON_LLAMA3, "hermes"),
        (LLAMA31, "llama3_json"),
        (LLAMA32, "llama3_json"),
        (MISTRAL, "mistral"),
        (MISTRAL_V7, "mistral"),
        (MISTRAL_V11, "mistral"),
        (QWEN_CODER, None),
        (GLM, None),
        (APRIEL, None),
        (MINIMAX, None),
        (LLAMA3, None),
        (DEEPSEEK_R1, None),
        (PHI, None),
        (CHATML, None),
        ("", None),
    ],
)
def test_the_format_is_that_of_the_template(template: str, name: str | None) -> None:
    assert detect_format(template) == name
    assert name is None or name in FORMATS
