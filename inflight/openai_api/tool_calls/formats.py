"""The formats in which models call functions, and which of them a chat template asks for."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple

from inflight.openai_api.tool_calls.harmony import HarmonyParser
from inflight.openai_api.tool_calls.json_calls import JsonCallsParser
from inflight.openai_api.tool_calls.literal_calls import GemmaCallsParser, PythonCallsParser
from inflight.openai_api.tool_calls.mistral import MistralParser
from inflight.openai_api.tool_calls.named_calls import NamedCallsParser
from inflight.openai_api.tool_calls.parser import ToolCallParser
from inflight.openai_api.tool_calls.xml_calls import XmlCallsParser, XmlTags

_HY = ":opensource"


class Format(NamedTuple):
    """How some models call functions. `template` is what their templates have, as a regular expression."""

    models: str
    example: str
    template: str
    parser: Callable[..., ToolCallParser]


FORMATS: dict[str, Format] = {
    # The first format whose expression matches is the template's.
    "harmony": Format(
        "gpt-oss",
        'to=functions.f<|channel|>commentary <|constrain|>json<|message|>{"city": "Bern"}<|call|>',
        r"<\|channel\|>.*<\|message\|>",
        HarmonyParser,
    ),
    "mistral": Format(
        "Mistral v3 to v13, Ministral, Devstral, Magistral",
        '[TOOL_CALLS]f[ARGS]{"city": "Bern"}',
        r"\[TOOL_CALLS\]",
        MistralParser,
    ),
    "deepseek": Format(
        "DeepSeek V3, R1, V3.1",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"city": "Bern"}<｜tool▁call▁end｜>'
        "<｜tool▁calls▁end｜>",
        r"<｜tool▁calls▁begin｜>",
        partial(
            NamedCallsParser,
            start="<｜tool▁call▁begin｜>",
            headers=("{name}<｜tool▁sep｜>", "function<｜tool▁sep｜>{name}```json", "function<｜tool▁sep｜>{name}"),
            sections=("<｜tool▁calls▁begin｜>",),
            ends=("```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
        ),
    ),
    "deepseek_dsml": Format(
        "DeepSeek V3.2, V4",
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="city" string="true">Bern'
        "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        r"｜DSML｜",
        partial(
            XmlCallsParser,
            xml=XmlTags(
                '<｜DSML｜invoke name="',
                '">',
                '<｜DSML｜parameter name="',
                '">',
                "</｜DSML｜parameter>",
                "</｜DSML｜invoke>",
                ("<｜DSML｜function_calls>", "<｜DSML｜tool_calls>"),
                ("</｜DSML｜function_calls>", "</｜DSML｜tool_calls>"),
            ),
        ),
    ),
    "kimi_k2": Format(
        "Kimi K2",
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"city": "Bern"}'
        "<|tool_call_end|><|tool_calls_section_end|>",
        r"<\|tool_calls_section_begin\|>",
        partial(
            NamedCallsParser,
            start="<|tool_call_begin|>",
            headers=tuple(
                f"{name}<|tool_call_argument_begin|>" for name in ("functions.{name}:{id}", "{name}:{id}", "{name}")
            ),
            sections=("<|tool_calls_section_begin|>",),
            ends=("<|tool_call_end|>", "<|tool_calls_section_end|>"),
        ),
    ),
    "solar": Format(
        "Solar Open",
        '<|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>f<|tool_call:args|>{"city": "Bern"}<|tool_call:end|>',
        r"<\|tool_call:begin\|>",
        partial(
            NamedCallsParser,
            start="<|tool_call:begin|>",
            headers=("{id}<|tool_call:name|>{name}<|tool_call:args|>",),
            ends=("<|tool_call:end|>",),
        ),
    ),
    "gemma4": Format(
        "Gemma 4",
        '<|tool_call>call:f{city:<|"|>Bern<|"|>}<tool_call|>',
        r"<\|tool_call>",
        GemmaCallsParser,
    ),
    "cohere": Format(
        "Command R, R+, R7B, A",
        '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {"city": "Bern"}}]<|END_ACTION|>',
        r"<\|START_ACTION\|>|Action:(\\n|\s)*```json",
        partial(
            JsonCallsParser,
            starts=("<|START_ACTION|>", "Action: ```json", "Action:\n```json"),
            ends=("<|END_ACTION|>", "```"),
        ),
    ),
    "nemotron": Format(
        "Nemotron Nano v2",
        '<TOOLCALL>[{"name": "f", "arguments": {"city": "Bern"}}]</TOOLCALL>',
        r"<TOOLCALL>",
        partial(JsonCallsParser, starts=("<TOOLCALL>",), ends=("</TOOLCALL>",)),
    ),
    "apertus": Format(
        "Apertus",
        '<|tools_prefix|>[{"f": {"city": "Bern"}}]<|tools_suffix|>',
        r"<\|tools_prefix\|>",
        partial(JsonCallsParser, starts=("<|tools_prefix|>",), ends=("<|tools_suffix|>",), keyed=True),
    ),
    "gigachat": Format(
        "GigaChat 3",
        'function call<|role_sep|>\n{"name": "f", "arguments": {"city": "Bern"}}',
        r"<\|function_call\|>|'function call'",
        partial(
            JsonCallsParser,
            starts=("<|message_sep|>\n\nfunction call<|role_sep|>", "function call<|role_sep|>", "<|function_call|>"),
            ends=("<|message_sep|>",),
        ),
    ),
    "hunyuan": Format(
        "Hunyuan 3",
        f"<tool_calls{_HY}>\n<tool_call{_HY}>f<tool_sep{_HY}>\n<arg_key{_HY}>city</arg_key{_HY}>\n"
        f"<arg_value{_HY}>Bern</arg_value{_HY}>\n</tool_call{_HY}>\n</tool_calls{_HY}>",
        rf"{_HY}.*<tool_sep",
        partial(
            XmlCallsParser,
            xml=XmlTags(
                f"<tool_call{_HY}>",
                f"<tool_sep{_HY}>",
                f"<arg_key{_HY}>",
                f"<arg_value{_HY}>",
                f"</arg_value{_HY}>",
                f"</tool_call{_HY}>",
                (f"<tool_calls{_HY}>",),
                (f"</tool_calls{_HY}>",),
            ),
        ),
    ),
    "glm": Format(
        "GLM 4.5 to 4.7, Ling 3, Laguna, Spark 2.5",
        "<tool_call>f\n<arg_key>city</arg_key>\n<arg_value>Bern</arg_value>\n</tool_call>",
        r"<arg_key>",
        partial(
            XmlCallsParser,
            xml=XmlTags("<tool_call>", "", "<arg_key>", "<arg_value>", "</arg_value>", "</tool_call>"),
        ),
    ),
    "qwen3_coder": Format(
        "Qwen3-Coder, Qwen3.5, Nemotron 3, Step 3.5, Seed-OSS",
        "<tool_call>\n<function=f>\n<parameter=city>\nBern\n</parameter>\n</function>\n</tool_call>",
        r"<parameter=",
        partial(
            XmlCallsParser,
            xml=XmlTags(
                "<function=",
                ">",
                "<parameter=",
                ">",
                "</parameter>",
                "</function>",
                ("<tool_call>", "<seed:tool_call>"),
                ("</tool_call>", "</seed:tool_call>"),
                lines=True,
            ),
        ),
    ),
    "minimax_m2": Format(
        "MiniMax M2",
        '<minimax:tool_call>\n<invoke name="f">\n<parameter name="city">Bern</parameter>\n</invoke>\n'
        "</minimax:tool_call>",
        r"<minimax:tool_call>",
        partial(
            XmlCallsParser,
            xml=XmlTags(
                '<invoke name="',
                '">',
                '<parameter name="',
                '">',
                "</parameter>",
                "</invoke>",
                ("<minimax:tool_call>",),
                ("</minimax:tool_call>",),
            ),
        ),
    ),
    "minicpm": Format(
        "MiniCPM 5",
        '<function name="f"><param name="city">Bern</param></function>',
        r"<param name=",
        partial(
            XmlCallsParser,
            xml=XmlTags('<function name="', '">', '<param name="', '">', "</param>", "</function>"),
        ),
    ),
    "functionary": Format(
        "Functionary 3.1",
        '<function=f>{"city": "Bern"}</function>',
        r"<function=",
        partial(NamedCallsParser, start="<function=", headers=("{name}>",), ends=("</function>",)),
    ),
    "granite": Format(
        "Granite 3, Phi-4-mini",
        '<|tool_call|>[{"name": "f", "arguments": {"city": "Bern"}}]',
        r"<\|tool_call\|>|<\|tool\|>",
        partial(JsonCallsParser, starts=("<|tool_call|>",), ends=("<|/tool_call|>",)),
    ),
    "json_list": Format(
        "Apriel, MiniMax M1, Jamba",
        '<tool_calls>[{"name": "f", "arguments": {"city": "Bern"}}]</tool_calls>',
        r"<tool_calls>",
        partial(JsonCallsParser, starts=("<tool_calls>",), ends=("</tool_calls>",)),
    ),
    "functools": Format(
        "Firefunction, Phi-4-mini as vLLM prompts it",
        'functools[{"name": "f", "arguments": {"city": "Bern"}}]',
        r"functools\[",
        partial(JsonCallsParser, starts=("functools",)),
    ),
    "pythonic": Format(
        "Llama 4 and 3.2 with calls in Python, LFM2",
        '<|tool_call_start|>[f(city="Bern")]<|tool_call_end|>',
        r"<\|tool_call_start\|>|<\|tool_list_start\|>|List of tools: \[|\[func(tion)?_?(name)?1?\(",
        partial(
            PythonCallsParser,
            starts=("<|tool_call_start|>", "<|python_start|>"),
            ends=("<|tool_call_end|>", "<|python_end|>"),
        ),
    ),
    "hermes": Format(
        "Hermes 2 and 3, Qwen2.5, Qwen3, QwQ, Granite 4, SmolLM3",
        '<tool_call>\n{"name": "f", "arguments": {"city": "Bern"}}\n</tool_call>',
        r"(?<!\[)<tool_call>",
        partial(JsonCallsParser, starts=("<tool_call>",), ends=("</tool_call>",)),
    ),
    "llama3_json": Format(
        "Llama 3.1, 3.2, 3.3, 4",
        '{"name": "f", "parameters": {"city": "Bern"}}',
        r"(<\|start_header_id\|>|<\|header_start\|>)(?s:.*)\"parameters\\?\"",
        partial(JsonCallsParser, starts=("<|python_tag|>",), bare="{", separator=";"),
    ),
}


@lru_cache(16)
def detect_format(template: str) -> str | None:
    """Return the name in `FORMATS` of the format that a chat template asks for; None if it is unknown."""
    if "]<]minimax[>[" in template:  # MiniMax M3 writes nested elements
        return None
    return next((name for name, each in FORMATS.items() if re.search(each.template, template, re.DOTALL)), None)


def format_of(template: str, named: str | None) -> str | None:
    """Return the format of a model: the one that the gateway's options name, or that of its chat template."""
    return (named if named in FORMATS else None) if named else detect_format(template)


def lacks_format(template: str, named: str | None) -> bool:
    """Return whether a chat template shows tools to the model, and the format of its calls is unknown."""
    return re.search(r"\btools\b", template) is not None and format_of(template, named) is None
