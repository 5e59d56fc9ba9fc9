"""Chat templates in jinja2's sandbox, with limits on their output and time.

Within these limits, the output is that of transformers' environment. The sandbox hides Python's internals; `limits` is
designed for the operator's own templates and hostile messages.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import wraps
from typing import Any, NoReturn

from jinja2 import Environment, TemplateError, nodes, pass_environment
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from inflight.common.request_error import RequestError
from inflight.text.template_limits import (
    MAX_CHARACTERS,
    bounded,
    charge,
    check_filter,
    check_format_method,
    check_method,
    check_operator,
    check_percent,
    check_size,
    joined,
)

_MAX_ERROR_CHARACTERS = 400
"""Characters of a template's own error message that are passed on."""
_LIMITED_FILTERS = (
    *("string", "upper", "lower", "title", "capitalize", "trim", "replace", "escape", "e", "forceescape", "pprint"),
    *("urlencode", "urlize", "striptags", "center", "indent", "format", "truncate", "wordwrap", "wordcount", "tojson"),
    *("xmlattr", "batch", "slice", "round", "sum"),
)
"""Filters whose output depends on the length of their input or on the numbers in their arguments."""


class _Generation(Extension):
    """`{% generation %}` marks what the model writes, for training; it renders its content."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_as_it_is"), [], [], body).set_lineno(line)

    @staticmethod
    def _as_it_is(caller: Any) -> Any:
        return caller()


class _Environment(ImmutableSandboxedEnvironment):
    """An environment with transformers' settings, which checks every operation that could grow or run long."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, loopcontrols],
            finalize=self._shown,
        )
        self.filters["tojson"] = _to_json
        self.filters |= {name: _bounded(name, self.filters[name]) for name in _LIMITED_FILTERS}
        self.filters["join"] = _join
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        del self.globals["lipsum"]  # generates as many words as requested, and templates don't use it

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Make each loop iteration, macro call and `~` call `account` or `concatenated`; jinja2 has no hook for it."""
        tree = super()._parse(source, name, filename)
        for block in list(tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock))):
            characters = sum(len(data.data) for data in block.find_all(nodes.TemplateData))
            account = _call("account", [nodes.Const(characters)])
            block.body.insert(0, nodes.ExprStmt(account).set_lineno(block.lineno))  # type: ignore[attr-defined]
        return _with_concatenations_called(tree)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            check_percent(left, right)
        check_operator(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - as jinja2 has it
        if getattr(__obj, "__name__", "") == "join" and isinstance(getattr(__obj, "__self__", None), str):
            args = tuple(map(list, args))
            joined(__obj.__self__, *args)
        check_method(__obj, args, kwargs)
        return super().call(__context, __obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Replace a string's `format`; jinja2 3.1.6 and later call this."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def checked(*args: Any, **kwargs: Any) -> str:
            check_format_method(value, args, kwargs)
            return wrapped(*args, **kwargs)

        return checked

    def account(self, characters: int) -> None:
        """Count characters; loops and macros of templates call this."""
        charge(characters)

    def concatenated(self, *values: Any) -> str:
        """Return the result of `~`."""
        return joined("", values)

    def _shown(self, value: Any) -> Any:
        """Check the value of each expression that is shown."""
        charge(check_size(value))
        return value


class SandboxedTemplate:
    """One template, compiled with transformers' settings.

    Raises RequestError (`no_chat_template`) for an invalid template.
    """

    def __init__(self, name: str, source: str) -> None:
        self._name = name
        self._environment = _Environment()
        try:
            self._template = self._environment.from_string(source)
        except Exception as error:  # a broken template must not affect text requests
            raise RequestError(
                f"the checkpoint's chat template {name} can't be compiled ({error}); fix it, or send text",
                "no_chat_template",
            ) from None

    def render(self, variables: Mapping[str, Any]) -> str:
        """Return the text. Raises RequestError (`invalid_messages`) for any error, and for exceeding a limit."""
        pieces = []
        length = 0
        try:
            with bounded():
                for piece in self._template.generate(variables):
                    length += len(piece)
                    if length > MAX_CHARACTERS:
                        raise OverflowError(f"it makes more than {MAX_CHARACTERS} characters")
                    pieces.append(piece)
        except Exception as error:
            words = " ".join(str(error).split())[:_MAX_ERROR_CHARACTERS] or type(error).__name__
            raise RequestError(
                f"the chat template {self._name} does not take the messages: {words}", "invalid_messages"
            ) from None
        return "".join(pieces)


def _with_concatenations_called(tree: nodes.Template) -> nodes.Template:
    for parent in [tree, *tree.find_all(nodes.Node)]:
        for field, value in parent.iter_fields():
            if isinstance(value, nodes.Concat):
                setattr(parent, field, _call("concatenated", value.nodes))
            elif isinstance(value, list):
                value[:] = [
                    _call("concatenated", node.nodes) if isinstance(node, nodes.Concat) else node for node in value
                ]
    return tree


def _call(name: str, arguments: list[Any]) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), arguments, [], None, None)


def _bounded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that checks the size of its output before it runs."""
    first = int(hasattr(function, "jinja_pass_arg"))  # the first argument may be the environment or context

    @wraps(function)
    def checked(*positional: Any, **named: Any) -> Any:
        value, *arguments = positional[first:]
        check_filter(name, value, arguments, named)
        return function(*positional, **named)

    return checked


@pass_environment
def _join(environment: Environment, value: Any, d: Any = "", attribute: str | int | None = None) -> str:
    """Join as jinja2 without autoescaping does, up to the length limit."""
    parts = value if attribute is None else map(make_attrgetter(environment, attribute), value)
    return joined(d, parts)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Encode as transformers does: without the HTML escapes of jinja2's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: Any) -> NoReturn:
    raise TemplateError(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
