"""Converts texts and conversations to token ids with a checkpoint's tokenizer and chat template."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from inflight.common.request_error import RequestError
from inflight.text.chat_template import ChatRenderer, first_token
from inflight.text.special_text import SpecialText
from inflight.text.tokenizer import encode, longest_token_bytes

_MAX_CHARACTERS_PER_TOKEN = 8
"""Few texts have more characters per token; one that does is counted in slices before it is tokenized whole."""
_SLICE = 16_384
"""Characters."""

IncrementalWork = Generator[int, None, Any]
"""Work in pieces: yields the number of characters of the next piece to tokenize or render; returns the result."""


class RenderedChat(NamedTuple):
    """The text of a conversation, and the marker of parts that have no special tokens."""

    text: str
    marker: str


class PromptEncoder:
    """A missing or broken template affects conversations only. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer, directory: str | Path, special_tokens_in_messages: bool = False) -> None:
        """With `special_tokens_in_messages`, the texts of special tokens in messages become these tokens."""
        self.tokenizer = tokenizer
        self.longest_token = longest_token_bytes(tokenizer)
        """The most bytes of text that one token may have."""
        self._first_id: int | None = tokenizer.token_to_id(first_token(directory))
        self._renderer: ChatRenderer | None = None
        self.refusal = RequestError(
            "the checkpoint has no chat template; send text, or render the messages where they are sent",
            "no_chat_template",
        )
        """Why conversations can't be rendered, if they can't."""
        try:
            self._renderer = ChatRenderer.from_directory(directory)
        except RequestError as error:
            self.refusal = error
        self._special_text: SpecialText | None = None
        if self._renderer is not None and not special_tokens_in_messages:
            self._special_text = SpecialText(tokenizer, self._renderer.sources)
            self._special_text.prepare()

    @property
    def template(self) -> str:
        """The sources of the chat templates; "" without any."""
        return "" if self._renderer is None else self._renderer.sources

    def check_template(self) -> None:
        """Raise RequestError (`no_chat_template`) if conversations can't be rendered."""
        if self._renderer is None:
            raise RequestError(str(self.refusal), self.refusal.code)

    def render(self, messages: bytes, kwargs: bytes) -> RenderedChat:
        """Render messages and arguments of the template, both as JSON in UTF-8. Raises RequestError."""
        self.check_template()
        assert self._renderer is not None
        marker = ""

        def protect(chat: list[Any], arguments: dict[str, Any]) -> None:
            nonlocal marker
            marker = self._special_text.protect(chat, arguments) if self._special_text is not None else ""

        return RenderedChat(self._renderer.render_json(messages, kwargs, protect), marker)

    def encode(self, prompt: str | RenderedChat, special: bool, max_tokens: int | None = None) -> IncrementalWork:
        """Return the token ids of a text, with the special tokens around it if wanted, or of a conversation.

        A rendered conversation includes its special tokens. Raises RequestError: `empty_prompt` for a text without
        tokens; `prompt_too_long` for one with far more than `max_tokens`, before it is tokenized whole. Tokenizing in
        slices gives about as many tokens as tokenizing the whole; a text with twice the limit is therefore too long in
        any case.
        """
        text = prompt if isinstance(prompt, str) else prompt.text
        if max_tokens is not None and len(text) > _MAX_CHARACTERS_PER_TOKEN * max_tokens:
            tokens = 0
            for start in range(0, len(text), _SLICE):
                yield _SLICE
                tokens += len(encode(self.tokenizer, [text[start : start + _SLICE]], False)[0])
                if tokens > 2 * max_tokens:
                    raise RequestError(
                        f"the prompt's {len(text)} characters have more than {max_tokens} tokens, which is what"
                        " the engine takes; shorten it",
                        "prompt_too_long",
                    )
        yield len(text)
        if isinstance(prompt, str):
            return self._encode_text(text, special)
        if prompt.marker and self._special_text is not None:
            return self._special_text.encode(text, prompt.marker)
        return self._encode_text(text, special=False)

    def _encode_text(self, text: str, special: bool) -> list[int]:
        ids = encode(self.tokenizer, [text], special)[0]
        if not ids and special and self._first_id is not None:  # as models were trained to begin a text
            return [self._first_id]
        if not text and not ids:
            raise RequestError("the prompt is empty; send at least one character", "empty_prompt")
        return ids
