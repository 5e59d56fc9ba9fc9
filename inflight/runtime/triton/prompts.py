"""Reads a request's prompts as token ids: from text, from messages by the checkpoint's chat template, or as ids."""

from __future__ import annotations

from typing import Any

import numpy as np
from tokenizers import Tokenizer

from inflight.common.request_error import RequestError
from inflight.runtime.engine.request_values import check_ids
from inflight.runtime.triton.inputs import Inputs
from inflight.text.prompt_encoder import IncrementalWork, PromptEncoder, RenderedChat
from inflight.text.template_limits import bounded
from inflight.text.tokenizer import check_size, decoded_text

_MAX_TEXT_BYTES = 2**22
"""Size of a text that is tokenized without being a prompt."""
_JSON_BYTES = 64
"""Bytes of a message besides its content, which become at least one token."""


class PromptReader:
    """Reads the prompts of `preprocessing`'s requests. A missing or broken template affects messages only."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        tokenizer_dir: str,
        max_tokens: int,
        vocabulary_size: int,
        add_special_tokens: bool,
        special_tokens_in_messages: bool = False,
    ) -> None:
        """`max_tokens` is the engine's longest sequence; longer texts are refused before they are tokenized.

        With `special_tokens_in_messages`, the texts of special tokens in messages become these tokens.
        """
        self._encoder = PromptEncoder(tokenizer, tokenizer_dir, special_tokens_in_messages)
        self._longest_token = self._encoder.longest_token
        self._max_tokens, self._vocabulary_size = max_tokens, vocabulary_size
        self._add_special_tokens = add_special_tokens

    def read(self, inputs: Inputs, add_special_tokens: bool | None = None, fits: bool = True) -> IncrementalWork:
        """Return the token ids of each prompt. Raises RequestError for an invalid or too long prompt.

        `add_special_tokens` replaces the model's setting. Rendered messages include special tokens, so none are added.
        `fits`: a prompt that is longer than the engine's sequences is too long.
        """
        most = self._max_tokens if fits else None
        if add_special_tokens is None:
            add_special_tokens = self._add_special_tokens
        token_ids = inputs.array("PROMPT_TOKEN_IDS")
        if token_ids is not None and token_ids.size:
            return self._given(token_ids, inputs)
        raw_texts = _texts(inputs)
        chats = [texts for name in ("MESSAGES", "CHAT_TEMPLATE_KWARGS") if (texts := inputs.array(name)) is not None]
        if chats:
            yield sum(len(text) for texts in chats for text in texts.flat)
        with bounded():
            conversations = [self._conversation(inputs, row, bool(raw)) for row, raw in enumerate(raw_texts)]
        ids = []
        for raw, chat in zip(raw_texts, conversations, strict=True):
            text = self._checked(raw, None if chat is None else chat.text.encode(), most)
            ids.append((yield from self._encoder.encode(chat or text, add_special_tokens, most)))
        return ids

    def _given(self, token_ids: Any, inputs: Inputs) -> list[list[int]]:
        """Return the token ids that were sent instead of texts. Raises RequestError."""
        if any(np.any(inputs.array(name)) for name in ("QUERY", "MESSAGES")):
            raise RequestError("prompt_token_ids and a text or messages are given; send one of them", "invalid_request")
        rows: list[list[int]] = token_ids.tolist()
        for row in rows:
            check_ids(row, "prompt_token_ids", self._vocabulary_size)
        return rows

    def _checked(self, raw: bytes, chat: bytes | None, most: int | None) -> str:
        name, raw = ("text_input", raw) if chat is None else ("the rendered messages", chat)
        check_size(raw, name, *((self._longest_token, most) if most is not None else (1, _MAX_TEXT_BYTES)))
        return decoded_text(raw, name)

    def _conversation(self, inputs: Inputs, row: int, has_text: bool) -> RenderedChat | None:
        """Return the rendered messages of a prompt; None if it has none."""
        messages: Any = inputs.scalar("MESSAGES", row, b"")
        kwargs: Any = inputs.scalar("CHAT_TEMPLATE_KWARGS", row, b"")
        if not messages:
            if kwargs:
                raise RequestError("chat_template_kwargs requires messages; send both or neither", "invalid_messages")
            return None
        if has_text:
            raise RequestError("text_input and messages are both given; leave one of them empty", "invalid_messages")
        self._encoder.check_template()
        # Check the size first: rendering takes time too, and other requests would wait.
        check_size(messages, "messages", self._longest_token + _JSON_BYTES, self._max_tokens)
        check_size(kwargs, "chat_template_kwargs", self._longest_token + _JSON_BYTES, self._max_tokens)
        return self._encoder.render(messages, kwargs)


def _texts(inputs: Inputs) -> list[bytes]:
    """Return one text per prompt; empty ones if only messages were sent."""
    texts, messages = inputs.array("QUERY"), inputs.array("MESSAGES")
    if texts is not None:
        queries: list[bytes] = texts[:, 0].tolist()
        return queries
    if messages is None:
        raise RequestError("text_input is missing; send the prompt's text, or messages", "invalid_request")
    return [b""] * len(messages)
