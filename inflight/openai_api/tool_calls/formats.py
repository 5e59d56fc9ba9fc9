"""The formats in which models call functions, and which of them a chat template asks for."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

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

    template: str
    parser: Callable[..., ToolCallParser]


def _xml(template: str, tags: str, *sections: str, lines: bool = False) -> Format:
    """Return a format in XML; `tags` are those of `XmlTags` up to `end`, with | between them."""
    ends = tuple(f"</{section[1:]}" for section in sections)
    call, close, key, value, value_end, end = tags.split("|")
    xml = XmlTags(call, close, key, value, value_end, end, sections, ends, lines)
    return Format(template, partial(XmlCallsParser, xml=xml))


def _json(template: str, *starts: str, ends: tuple[str, ...] = (), **options: Any) -> Format:
    return Format(template, partial(JsonCallsParser, starts=starts, ends=ends, **options))


FORMATS: dict[str, Format] = {
    # The first format whose expression matches is the template's. docs/conversations.md has their models and examples.
    "harmony": Format(r"\A(?=.*<\|channel\|>)(?=.*<\|message\|>)", HarmonyParser),
    "mistral": Format(r"\[TOOL_CALLS\]", MistralParser),
    "deepseek": Format(
        r"<｜tool▁calls▁begin｜>",
        partial(
            NamedCallsParser,
            start="<｜tool▁call▁begin｜>",
            headers=("{name}<｜tool▁sep｜>", "function<｜tool▁sep｜>{name}```json", "function<｜tool▁sep｜>{name}"),
            sections=("<｜tool▁calls▁begin｜>",),
            ends=("```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
        ),
    ),
    "deepseek_dsml": _xml(
        r"｜DSML｜",
        '<｜DSML｜invoke name="|">|<｜DSML｜parameter name="|">|</｜DSML｜parameter>|</｜DSML｜invoke>',
        *("<｜DSML｜function_calls>", "<｜DSML｜tool_calls>"),
    ),
    "kimi_k2": Format(
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
        r"<\|tool_call:begin\|>",
        partial(
            NamedCallsParser,
            start="<|tool_call:begin|>",
            headers=("{id}<|tool_call:name|>{name}<|tool_call:args|>",),
            ends=("<|tool_call:end|>",),
        ),
    ),
    "gemma4": Format(r"<\|tool_call>", GemmaCallsParser),
    "cohere": _json(
        r"<\|START_ACTION\|>|Action:(\\n|\s)*```json",
        *("<|START_ACTION|>", "Action: ```json", "Action:\n```json"),
        ends=("<|END_ACTION|>", "```"),
    ),
    "nemotron": _json(r"<TOOLCALL>", "<TOOLCALL>", ends=("</TOOLCALL>",)),
    "apertus": _json(r"<\|tools_prefix\|>", "<|tools_prefix|>", ends=("<|tools_suffix|>",), keyed=True),
    "gigachat": _json(
        r"<\|function_call\|>|'function call'",
        *("<|message_sep|>\n\nfunction call<|role_sep|>", "function call<|role_sep|>", "<|function_call|>"),
        ends=("<|message_sep|>",),
    ),
    "hunyuan": _xml(
        rf"\A(?=.*{_HY})(?=.*<tool_sep)",
        f"<tool_call{_HY}>|<tool_sep{_HY}>|<arg_key{_HY}>|<arg_value{_HY}>|</arg_value{_HY}>|</tool_call{_HY}>",
        f"<tool_calls{_HY}>",
    ),
    "glm": _xml(r"<arg_key>", "<tool_call>||<arg_key>|<arg_value>|</arg_value>|</tool_call>"),
    "qwen3_coder": _xml(
        r"<parameter=",
        "<function=|>|<parameter=|>|</parameter>|</function>",
        *("<tool_call>", "<seed:tool_call>"),
        lines=True,
    ),
    "minimax_m2": _xml(
        r"<minimax:tool_call>",
        '<invoke name="|">|<parameter name="|">|</parameter>|</invoke>',
        "<minimax:tool_call>",
    ),
    "minicpm": _xml(r"<param name=", '<function name="|">|<param name="|">|</param>|</function>'),
    "functionary": Format(
        r"<function=", partial(NamedCallsParser, start="<function=", headers=("{name}>",), ends=("</function>",))
    ),
    "granite": _json(r"<\|tool_call\|>|<\|tool\|>", "<|tool_call|>", ends=("<|/tool_call|>",)),
    "json_list": _json(r"<tool_calls>", "<tool_calls>", ends=("</tool_calls>",)),
    "functools": _json(r"functools\[", "functools"),
    "pythonic": Format(
        r"<\|tool_call_start\|>|<\|tool_list_start\|>|List of tools: \[|\[func(tion)?_?(name)?1?\(",
        partial(
            PythonCallsParser,
            starts=("<|tool_call_start|>", "<|python_start|>"),
            ends=("<|tool_call_end|>", "<|python_end|>"),
        ),
    ),
    "hermes": _json(r"(?<!\[)<tool_call>", "<tool_call>", ends=("</tool_call>",)),
    "llama3_json": _json(
        r"\A(?=.*<\|(start_header_id|header_start)\|>)(?=.*\"parameters\\?\")",
        *("<|python_tag|>",),
        bare="{",
        separator=";",
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
    return named is None and re.search(r"\btools\b", template) is not None and detect_format(template) is None
