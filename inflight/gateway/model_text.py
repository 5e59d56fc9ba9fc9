"""What the gateway knows of a model's text: tokenizer, chat template, and the formats of its calls and reasoning."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inflight_client import Deployment, InflightError
from inflight_client.call import Message, Prompt, TokenIds

from inflight.gateway.settings import GatewaySettings
from inflight.openai_api.errors import ApiError, context_length_exceeded
from inflight.openai_api.reasoning import ReasoningTags
from inflight.openai_api.token_text import TokenTexts

logger = logging.getLogger("inflight.gateway")


@dataclass(frozen=True)
class ModelText:
    """The parts that need the checkpoint's files are None if the gateway has none."""

    tokenizer: Any = None
    renderer: Any = None
    token_texts: TokenTexts | None = None
    template: str = ""
    """The sources of the chat templates."""
    special_text: Any = None
    longest_token: int = 0
    """The most characters of text that one token may have; 0 if it is unknown."""

    @classmethod
    def unknown(cls) -> ModelText:
        return cls()

    @classmethod
    def load(cls, deployment: Deployment, settings: GatewaySettings) -> ModelText:
        """Load the files of `--tokenizer`, or of an engine that is served from this machine."""
        named = settings.tokenizer
        path = Path(named or str(deployment.served.get("engine_dir") or ""))
        if not _is_file(path / "tokenizer.json"):
            if named:
                raise InflightError(
                    f"{path} has no tokenizer.json; pass the checkpoint's directory", "invalid_parameter"
                )
            return cls.unknown()
        from inflight.common.request_error import RequestError
        from inflight.text.chat_template import ChatRenderer
        from inflight.text.special_text import SpecialText
        from inflight.text.tokenizer import load_tokenizer, longest_token_bytes

        try:
            tokenizer = load_tokenizer(str(path))
        except Exception as error:  # the library raises its own base class
            logger.warning("%s/tokenizer.json can't be read: %s", path, error)
            return cls.unknown()
        try:
            renderer = ChatRenderer.from_directory(path)
        except RequestError as error:
            logger.warning("%s", error)
            renderer = None
        template = renderer.sources if renderer else ""
        special_text = SpecialText(tokenizer, template)
        special_text.prepare()
        longest = longest_token_bytes(tokenizer)
        return cls(tokenizer, renderer, TokenTexts(tokenizer), template, special_text, longest)

    def check_size(self, prompt: Prompt | TokenIds, characters: int, max_tokens: int | None) -> None:
        """Raise ApiError for a prompt that is too long in any tokenization, before it is tokenized."""
        if max_tokens is None or not self.longest_token:
            return
        if isinstance(prompt, TokenIds):
            least = len(prompt.ids)
        else:
            least = max(0 if isinstance(prompt, str) else len(prompt), characters // self.longest_token)
        if least >= max_tokens:
            raise context_length_exceeded(
                max_tokens, least, "prompt" if isinstance(prompt, str | TokenIds) else "messages"
            )

    def token_count(self, prompt: Prompt | TokenIds, kwargs: Mapping[str, Any], special: bool = True) -> int:
        return len(prompt.ids if isinstance(prompt, TokenIds) else self.encode(prompt, kwargs, special))

    def encode(self, prompt: Prompt, kwargs: Mapping[str, Any], special: bool = True) -> list[int]:
        """Return the token ids of a text or of rendered messages, as preprocessing does. Raises ApiError."""
        self.need_tokenizer()
        if isinstance(prompt, str):
            return self._encode(prompt, special)
        text, marker = self._rendered(prompt, kwargs)
        return self.special_text.encode(text, marker) if marker else self._encode(text, False)

    def _encode(self, text: str, special: bool) -> list[int]:
        # A batch, since encoding one text would keep Python's lock.
        return list(self.tokenizer.encode_batch([text], add_special_tokens=special)[0].ids)

    def _rendered(self, prompt: Sequence[Message], kwargs: Mapping[str, Any]) -> tuple[str, str]:
        """Return messages as the template renders them, and the marker of special tokens' texts in it."""
        from inflight.common.request_error import RequestError
        from inflight.text.message_json import to_json

        if self.renderer is None:
            raise ApiError("the model has no chat template; send text", "no_chat_template", "messages")
        marker = ""

        def protect(chat: list[Any], given: dict[str, Any]) -> None:
            nonlocal marker
            marker = "" if self.special_text is None else self.special_text.protect(chat, given)

        try:
            messages, arguments = to_json("messages", list(prompt)), to_json("chat_template_kwargs", dict(kwargs))
            return self.renderer.render_json(messages, arguments, protect), marker
        except RequestError as error:
            raise ApiError(str(error), error.code, "messages") from None

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Return the text of token ids. Raises ApiError for an id outside the vocabulary."""
        self.need_tokenizer()
        for each in ids:
            if self.tokenizer.id_to_token(each) is None:
                raise ApiError(f"the token id {each} is outside the vocabulary", "invalid_token_ids", "tokens")
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def text_of(self, prompt: TokenIds) -> tuple[str, bool]:
        """Return the text that is tokenized to exactly these ids, and whether special tokens are added to it.

        Raises ApiError if there is none.
        """
        ids = list(prompt.ids)
        added = self.encode("", {}, special=True)
        candidates = [(ids, False)]
        if added and ids[: len(added)] == added:
            candidates.insert(0, (ids[len(added) :], True))
        for kept, special in candidates:
            text = self.decode(kept)
            if text and "\0" not in text and self.encode(text, {}, special) == ids:
                return text, special
        raise ApiError(
            "these token ids are not what the model's tokenizer makes of their text; send the text",
            "unsupported_input",
            "prompt",
        )

    def opens_reasoning(self, prompt: Sequence[Message], kwargs: Mapping[str, Any], tags: ReasoningTags) -> bool:
        """Return whether the template ends the prompt with the beginning of reasoning."""
        if self.renderer is None:
            return False
        try:
            text, _ = self._rendered(prompt, kwargs)
        except ApiError:
            return False  # the server says what is wrong
        return text.rstrip().endswith(tags.start)

    def need_tokenizer(self) -> None:
        if self.tokenizer is None:
            raise ApiError("the gateway has no tokenizer of this model; start it with --tokenizer", "unsupported_input")


def _is_file(path: Path) -> bool:
    """Return whether there is a file that this user can reach."""
    try:
        return path.is_file()
    except OSError:
        return False
