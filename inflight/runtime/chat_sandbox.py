"""A chat template as a program that can do no harm: jinja2's sandbox, with bounds on what it makes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from inflight.runtime.messages import RequestError

_MOST_CHARACTERS = 16 * 2**20
_MOST_WORDS = 400
"""Characters of a template's own error message that are passed on."""


class _Generation(Extension):
    """`{% generation %}` marks what the model says, for training; it shows as what it holds."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_as_it_is"), [], [], body).set_lineno(line)

    @staticmethod
    def _as_it_is(caller: Any) -> Any:
        return caller()


class SandboxedTemplate:
    """One template, compiled as transformers compiles them. RequestError (`no_chat_template`) for what is none."""

    def __init__(self, name: str, source: str) -> None:
        self._name = name
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        try:
            self._template = environment.from_string(source)
        except (TemplateError, RecursionError) as error:
            raise RequestError(
                f"the checkpoint's chat template {name} can't be compiled ({error}); mend it, or send text",
                "no_chat_template",
            ) from None

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text; RequestError (`invalid_messages`) for whatever goes wrong, and for one that grows too long."""
        pieces = []
        length = 0
        try:
            for piece in self._template.generate(variables):
                length += len(piece)
                if length > _MOST_CHARACTERS:
                    raise OverflowError(f"it makes more than {_MOST_CHARACTERS} characters")
                pieces.append(piece)
        except Exception as error:
            words = " ".join(str(error).split())[:_MOST_WORDS] or type(error).__name__
            raise RequestError(
                f"the chat template {self._name} does not take the messages: {words}", "invalid_messages"
            ) from None
        return "".join(pieces)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """As transformers has it: without HTML's escapes, which jinja2's own filter makes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: Any) -> NoReturn:
    raise TemplateError(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
