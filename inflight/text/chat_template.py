"""Renders chat messages as text with the checkpoint's own template, as `transformers` does.

The files, the choice of a template and its variables are those of transformers 4.57,
`PreTrainedTokenizerBase.apply_chat_template`, except that `add_generation_prompt` defaults to true.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from inflight.common.request_error import RequestError
from inflight.text.message_json import invalid_messages, parse_kwargs, parse_messages, to_json

_MAX_SOURCE_BYTES = 2**20
"""The longest template; published ones have up to tens of thousands of bytes."""
_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_MIN_JINJA2 = (3, 1, 6)
"""Earlier versions let a template read the process's environment (CVE-2025-27516)."""
_MARK = "CONTINUE_FINAL_MESSAGE_TAG "
"""Marks the end of the message to continue during rendering; its last space shows whether a template strips."""


class _Template(Protocol):
    def render(self, variables: Mapping[str, Any]) -> str: ...


class ChatRenderer:
    """The templates of one checkpoint, compiled in a sandbox, and the special tokens that they may use."""

    def __init__(self, sources: Mapping[str, str], special_tokens: Mapping[str, Any]) -> None:
        """`sources` maps names to templates: `default`, and optionally `tool_use` and others.

        Raises RequestError (`no_chat_template`) for an invalid template, and if jinja2 is missing or too old.
        """
        self.sources = "\n".join(sources.values())
        self._special_tokens = dict(special_tokens)
        self._templates = {name: _compiled(name, source) for name, source in sources.items()}

    @classmethod
    def from_directory(cls, path: str | Path) -> ChatRenderer | None:
        """Load the templates of a checkpoint or engine directory; return None if it has none.

        Raises RequestError (`no_chat_template`) for unreadable files, and like the constructor.
        """
        directory = Path(path)
        try:
            settings = _read_object(directory / "tokenizer_config.json")
            sources = _sources(directory, settings)
            return cls(sources, special_tokens(settings, directory)) if sources else None
        except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:  # or of the wrong types
            raise RequestError(
                f"the chat template of {directory.name} can't be read ({error}); fix the file, or send text",
                "no_chat_template",
            ) from None

    @property
    def bos_token(self) -> str:
        """Return the text of the token that begins a sequence; empty if the tokenizer has none."""
        return str(self._special_tokens.get("bos_token", ""))

    def render(self, messages: Sequence[Mapping[str, Any]], /, **kwargs: Any) -> str:
        """Return the text of a conversation, to be tokenized without adding special tokens: it includes them.

        `kwargs` are passed to the template. Of these, `tools` and `documents` are lists of objects, `chat_template` is
        the name of one of the checkpoint's templates, and `continue_final_message` continues the last message instead
        of beginning a new one. Raises RequestError (`invalid_messages`), with the template's own error message if it
        rejects the messages.
        """
        return self.render_json(to_json("messages", list(messages)), to_json("chat_template_kwargs", kwargs))

    def render_json(
        self, messages: bytes, kwargs: bytes, prepare: Callable[[list[Any], dict[str, Any]], None] | None = None
    ) -> str:
        """Render messages and arguments as they come in a request: JSON in UTF-8; arguments may be empty.

        `prepare` may change the parsed messages and arguments before they are rendered.
        """
        chat, arguments = parse_messages(messages), parse_kwargs(kwargs)
        _check(chat, arguments)
        if prepare is not None:
            prepare(chat, arguments)
        resume = bool(arguments.pop("continue_final_message", False))
        if resume and arguments.get("add_generation_prompt"):
            raise invalid_messages(
                "continue_final_message and add_generation_prompt exclude each other; continue the last message, or"
                " begin a new one"
            )
        arguments.setdefault("add_generation_prompt", not resume)
        template = self._select_template(arguments.pop("chat_template", None), arguments.get("tools"))
        last = _mark_last_text(chat) if resume else ""
        variables = {"tools": None, "documents": None} | self._special_tokens | arguments | {"messages": chat}
        text = template.render(variables)
        if resume:
            text = _up_to_mark(text, last)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise invalid_messages(
                f"the messages hold invalid Unicode ({error.reason}); send whole characters"
            ) from None
        return text

    def _select_template(self, name: Any, tools: Any) -> _Template:
        """Return the template of that name; without one, `tool_use` if tools are given, else `default`."""
        if name is None:
            name = "tool_use" if tools is not None and "tool_use" in self._templates else "default"
        if not isinstance(name, str) or name not in self._templates:
            names = ", ".join(sorted(self._templates))
            raise invalid_messages(f"there is no chat template named {str(name)[:60]!r}; choose one of {names}")
        return self._templates[name]


def first_token(directory: str | Path) -> str:
    """Return the text of the token that begins a sequence; empty if there is none, or the files are damaged."""
    place = Path(directory)
    try:
        return str(special_tokens(_read_object(place / "tokenizer_config.json"), place)["bos_token"])
    except (OSError, KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return ""


def _compiled(name: str, source: str) -> _Template:
    if len(source.encode()) > _MAX_SOURCE_BYTES:
        raise RequestError(
            f"the chat template {name} has more than {_MAX_SOURCE_BYTES} bytes; send text", "no_chat_template"
        )
    try:
        version = importlib.metadata.version("jinja2")
        from inflight.text.sandbox import SandboxedTemplate
    except ImportError as error:  # third-party containers may lack it; only messages need it
        raise RequestError(
            f"messages need the package jinja2 ({error}); install it where the template is rendered, or send text",
            "no_chat_template",
        ) from None
    if tuple(map(int, re.findall(r"\d+", version)[:3])) < _MIN_JINJA2:
        raise RequestError(
            f"messages need jinja2 3.1.6 or later, and the sandbox of the installed {version} is unsafe; install a"
            " later one where the template is rendered, or send text",
            "no_chat_template",
        )
    return SandboxedTemplate(name, source)


def _sources(directory: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the templates by name. Separate files take precedence over tokenizer_config.json."""
    further = sorted((directory / "additional_chat_templates").glob("*.jinja"))
    files = {"default": directory / "chat_template.jinja", **{path.stem: path for path in further}}
    sources = {name: path.read_text(encoding="utf-8") for name, path in files.items() if path.is_file()}
    if sources:
        return sources
    templates = settings.get("chat_template")
    if isinstance(templates, list):
        templates = {entry["name"]: entry["template"] for entry in templates if {"name", "template"} <= set(entry)}
    named = templates if isinstance(templates, dict) else {} if templates is None else {"default": templates}
    if not all(isinstance(source, str) for pair in named.items() for source in pair):
        raise ValueError("chat_template is neither a text nor texts by name")
    return named


def special_tokens(settings: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Return the special tokens' texts by name. The separate file of old checkpoints takes precedence."""
    merged = dict(settings)
    if "added_tokens_decoder" not in settings:
        overriding = _read_object(directory / "special_tokens_map.json")
        both = [*_texts(settings), *_texts(overriding)]
        merged |= {**overriding, "additional_special_tokens": list(dict.fromkeys(both))}
    tokens: dict[str, Any] = {name: _text(merged.get(name)) for name in _NAMED_TOKENS}
    tokens["additional_special_tokens"] = _texts(merged)
    extra = merged.get("extra_special_tokens")
    tokens |= {name: _text(token) for name, token in extra.items()} if isinstance(extra, dict) else {}
    return {name: token for name, token in tokens.items() if token}


def _text(token: Any) -> str:
    """Return a token's text: it is stored as a string, or as an object with further fields."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else ""


def _texts(settings: Mapping[str, Any]) -> list[str]:
    extra = settings.get("extra_special_tokens")  # of transformers 5; texts by name, before
    named = extra if isinstance(extra, list) else []
    return [_text(token) for token in settings.get("additional_special_tokens") or named]


def _read_object(path: Path) -> dict[str, Any]:
    """Return a file's JSON object; {} if the file doesn't exist."""
    if not path.is_file():
        return {}
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} holds no JSON object")
    return content


def _check(chat: list[Any], kwargs: Mapping[str, Any]) -> None:
    if not chat:
        raise invalid_messages("messages is empty; send at least one message")
    for position, message in enumerate(chat):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise invalid_messages(f"message {position} has no role; each is an object with role and content")
    for name in ("tools", "documents"):
        value = kwargs.get(name)
        if value is not None and not (isinstance(value, list) and all(isinstance(item, dict) for item in value)):
            raise invalid_messages(f"{name} in chat_template_kwargs is not a list of objects; send one")
    if "messages" in kwargs:
        raise invalid_messages("chat_template_kwargs has messages; send them only as messages")


def _mark_last_text(chat: list[Any]) -> str:
    """Put the mark after the text to continue, the last one of the last message; return the text."""
    message = chat[-1]
    blocks = message.get("content")
    if isinstance(blocks, list):
        texts = [block for block in blocks if isinstance(block, dict) and isinstance(block.get("text"), str)]
        holder, key = (texts[-1], "text") if texts else ({}, "text")
    else:
        holder, key = message, "content"
    text = holder.get(key)
    if not isinstance(text, str):
        raise invalid_messages("continue_final_message is set and the last message has no text to continue")
    holder[key] = text + _MARK
    return text


def _up_to_mark(text: str, last: str) -> str:
    """Return the rendered text up to the end of the message to continue, stripped if the template strips."""
    mark = _MARK.strip()
    if last.strip() not in text or mark not in text:
        raise invalid_messages(
            "continue_final_message is set and the chat template does not show the whole last message; begin a new one"
        )
    position = text.rindex(mark)
    kept = text[:position]
    return kept if text[position:].startswith(_MARK) else kept.rstrip()
