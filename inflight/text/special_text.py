"""Keeps the texts of special tokens in messages what they are: text.

A chat template marks turns with special tokens, or with other added tokens. If a message contains the text of one that
the template writes, such as `<|im_end|>`, tokenizing the rendered conversation would make it a control token, and the
message could forge turns. So such texts are broken up by a marker before rendering, and the parts of the result that
have markers are tokenized without special tokens.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Collection, Mapping
from typing import Any

from tokenizers import Tokenizer

_PRIVATE_USE = 0xE000
_MARKER_LENGTH = 8
_KEPT_IN_ANSWERS = frozenset(("<think>", "</think>", "<tool_call>", "</tool_call>"))
"""Templates split earlier answers of the model at these, or the model wrote them itself."""


class SpecialText:
    """The special tokens of one tokenizer, and tokenizers for texts that must not contain any.

    Added tokens that the sources of chat `templates` name count as special ones.
    """

    def __init__(self, tokenizer: Tokenizer, templates: str = "") -> None:
        tokens = [
            (number, token)
            for number, token in tokenizer.get_added_tokens_decoder().items()
            if token.special or (token.content.strip() and token.content in templates)
        ]
        self._ids = {token.content: number for number, token in tokens if token.content}
        self._tokens = {token.content: token for _, token in tokens}
        # The longest first, as the tokenizer itself prefers it.
        alternatives = "|".join(re.escape(text) for text in sorted(self._ids, key=len, reverse=True))
        self._pattern = re.compile(alternatives or r"(?!)")
        self._tokenizer = tokenizer
        self._plain: tuple[Tokenizer, Tokenizer] | None = None

    def prepare(self) -> None:
        """Make the tokenizers, which takes seconds for a large vocabulary and is done once."""
        if self._plain is None:
            self._plain = _without_special(self._tokenizer, self._ids)

    def protect(self, messages: list[Any], kwargs: dict[str, Any]) -> str:
        """Break up the texts of special tokens in place; return the marker, or "" if there is none.

        Roles stay as they are: templates of some models make special tokens of them.
        """
        marker = ""
        for message in messages:
            for name, value in message.items():
                if name == "role" or not self._contains(value):
                    continue
                marker = marker or _new_marker()
                kept = _KEPT_IN_ANSWERS if message["role"] == "assistant" else frozenset[str]()
                message[name] = self._broken(value, marker, kept)
        for name, value in kwargs.items():
            if name != "chat_template" and self._contains(value):
                marker = marker or _new_marker()
                kwargs[name] = self._broken(value, marker, frozenset())
        return marker

    def encode(self, text: str, marker: str) -> list[int]:
        """Return the token ids of a rendered conversation in which texts were broken up with this marker."""
        # Templates write some values as JSON, which may escape the marker.
        escaped = json.dumps(marker)[1:-1]
        text = text.replace(escaped, marker)
        self.prepare()
        assert self._plain is not None
        ids: list[int] = []
        start, strip_next = 0, False
        for match in [*self._pattern.finditer(text), None]:
            part = text[start : match.start() if match else len(text)].replace(marker, "")
            token = self._tokens[match[0]] if match else None
            part = part.lstrip() if strip_next else part
            part = part.rstrip() if token is not None and token.lstrip else part
            if part:
                # A batch, since encoding one text would keep Python's lock.
                ids += self._plain[0 if start == 0 else 1].encode_batch([part], add_special_tokens=False)[0].ids
            if match is not None and token is not None:
                ids.append(self._ids[match[0]])
                start, strip_next = match.end(), token.rstrip
        return ids

    def _contains(self, value: Any) -> bool:
        if isinstance(value, str):
            return self._pattern.search(value) is not None
        if isinstance(value, Mapping):
            return any(self._contains(each) for pair in value.items() for each in pair)
        return isinstance(value, list) and any(self._contains(each) for each in value)

    def _broken(self, value: Any, marker: str, kept: frozenset[str]) -> Any:
        if isinstance(value, str):
            return self._pattern.sub(
                lambda match: match[0] if match[0] in kept else match[0][:1] + marker + match[0][1:], value
            )
        if isinstance(value, Mapping):
            return {self._broken(name, marker, kept): self._broken(each, marker, kept) for name, each in value.items()}
        return [self._broken(each, marker, kept) for each in value] if isinstance(value, list) else value


def _new_marker() -> str:
    """Return characters of the private use area that no caller can know, and that no template changes."""
    return "".join(chr(_PRIVATE_USE + secrets.randbelow(0x1900)) for _ in range(_MARKER_LENGTH))


def _without_special(tokenizer: Tokenizer, special: Collection[str]) -> tuple[Tokenizer, Tokenizer]:
    """Return tokenizers that know no special tokens: one for the beginning of a text, one for what follows."""
    described = json.loads(tokenizer.to_str())
    for token in described["added_tokens"]:
        token["special"] = token["special"] or token["content"] in special
    first = Tokenizer.from_str(json.dumps(described))
    rest = Tokenizer.from_str(json.dumps(_without_prefix(described)))
    for each in (first, rest):
        each.no_padding()
        each.no_truncation()
        each.encode_special_tokens = True
    return first, rest


def _without_prefix(described: Any) -> Any:
    """Return a tokenizer's description in which only the beginning of a text has no prefix any more."""
    if isinstance(described, dict):
        changed = {name: _without_prefix(value) for name, value in described.items()}
        if changed.get("prepend_scheme") == "first":
            changed["prepend_scheme"] = "never"
        return changed
    return [_without_prefix(each) for each in described] if isinstance(described, list) else described
