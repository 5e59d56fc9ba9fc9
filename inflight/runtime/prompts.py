"""What a request asks to be continued, as token ids: its texts, or its conversations by the checkpoint's template."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer

from inflight.runtime.chat_bounds import bounded
from inflight.runtime.chat_template import ChatRenderer
from inflight.runtime.messages import RequestError
from inflight.runtime.tokenizer import check_size, checked_text, encode, longest_token_bytes
from inflight.runtime.triton_inputs import Inputs

_JSON_BYTES = 64
"""What a message takes beside its content; at least one token comes of it."""


class PromptReader:
    """Reads the prompts of `preprocessing`'s requests. A missing or broken template matters to conversations alone."""

    def __init__(self, tokenizer: Tokenizer, tokenizer_dir: str, max_tokens: int, add_special_tokens: bool) -> None:
        """`max_tokens` is the longest that the engine takes; longer texts are refused before they are tokenized."""
        self._tokenizer = tokenizer
        self._longest_token = longest_token_bytes(tokenizer)
        self._max_tokens = max_tokens
        self._add_special_tokens = add_special_tokens
        self._renderer: ChatRenderer | None = None
        self._refusal = RequestError(
            "the checkpoint has no chat template; send text_input, or render the messages where they are sent",
            "no_chat_template",
        )
        try:
            self._renderer = ChatRenderer.from_directory(tokenizer_dir)
        except RequestError as error:
            self._refusal = error

    def read(self, inputs: Inputs) -> list[list[int]]:
        """The token ids of each prompt. RequestError for what is no prompt, or too long for the engine.

        A rendered conversation has its special tokens in it, so none are put around it.
        """
        raw_texts = inputs.required("QUERY")[:, 0].tolist()
        with bounded():  # others wait as long as all its conversations take
            given = [self._conversation(inputs, row, bool(raw)) for row, raw in enumerate(raw_texts)]
        texts = [self._checked(raw, chat) for raw, chat in zip(raw_texts, given, strict=True)]
        special = [chat is None and self._add_special_tokens for chat in given]
        ids = {wanted: iter(self._encoded(texts, special, wanted)) for wanted in set(special)}
        return [next(ids[wanted]) for wanted in special]

    def _encoded(self, texts: list[str], special: list[bool], wanted: bool) -> list[list[int]]:
        """Those that go with special tokens around them, or without, in one call of the tokenizer."""
        chosen = [text for text, one in zip(texts, special, strict=True) if one is wanted]
        return encode(self._tokenizer, chosen, wanted)

    def _checked(self, raw: bytes, chat: bytes | None) -> str:
        name, raw = ("text_input", raw) if chat is None else ("the rendered messages", chat)
        check_size(raw, name, self._longest_token, self._max_tokens)
        return checked_text(raw, name)

    def _conversation(self, inputs: Inputs, row: int, has_text: bool) -> bytes | None:
        """What the template makes of a prompt's messages; None where it has none."""
        messages: Any = inputs.scalar("MESSAGES", row, b"")
        kwargs: Any = inputs.scalar("CHAT_TEMPLATE_KWARGS", row, b"")
        if not messages:
            if kwargs:
                raise RequestError("chat_template_kwargs goes with messages; send both, or none", "invalid_messages")
            return None
        if has_text:
            raise RequestError("text_input and messages are both given; leave one of them empty", "invalid_messages")
        if self._renderer is None:
            raise RequestError(str(self._refusal), self._refusal.code)
        # Rendering takes time too, and others would wait.
        check_size(messages, "messages", self._longest_token + _JSON_BYTES, self._max_tokens)
        check_size(kwargs, "chat_template_kwargs", self._longest_token + _JSON_BYTES, self._max_tokens)
        return self._renderer.render_json(messages, kwargs).encode()
