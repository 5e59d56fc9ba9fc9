"""What the gateway knows of a model's text: tokenizer, chat template, and the formats of its calls and reasoning."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inflight_client import Deployment, InflightError
from inflight_client.call import Prompt

from inflight.gateway.settings import GatewaySettings
from inflight.openai_api.errors import ApiError
from inflight.openai_api.reasoning import ReasoningTags
from inflight.openai_api.request import TokenIds
from inflight.openai_api.token_text import TokenTexts

_MAX_OPENED = 64

logger = logging.getLogger("inflight.gateway")


@dataclass(frozen=True)
class ModelText:
    """The parts that need the checkpoint's files are None if the gateway has none."""

    tokenizer: Any = None
    renderer: Any = None
    token_texts: TokenTexts | None = None
    template: str = ""
    """The sources of the chat templates."""
    opened: dict[str, bool] = field(default_factory=dict)
    """Whether the template opens reasoning, by its arguments."""

    @classmethod
    def unknown(cls) -> ModelText:
        return cls()

    @classmethod
    def load(cls, deployment: Deployment, settings: GatewaySettings) -> ModelText:
        """Load the files of `--tokenizer`, or of an engine that is served from this machine."""
        named = settings.tokenizer
        path = Path(named or str(deployment.served.get("engine_dir") or ""))
        if not (path / "tokenizer.json").is_file():
            if named:
                raise InflightError(
                    f"{path} has no tokenizer.json; pass the checkpoint's directory", "invalid_parameter"
                )
            return cls.unknown()
        from inflight.runtime.chat.template import ChatRenderer
        from inflight.runtime.messages import RequestError
        from inflight.runtime.text.tokenizer import load_tokenizer

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
        return cls(tokenizer, renderer, TokenTexts(tokenizer), renderer.sources if renderer else "")

    def token_count(self, prompt: Prompt, kwargs: Mapping[str, Any], special: bool = True) -> int:
        return len(self.encode(prompt, kwargs, special))

    def encode(self, prompt: Prompt, kwargs: Mapping[str, Any], special: bool = True) -> list[int]:
        """Return the token ids of a text or of rendered messages. Raises ApiError."""
        from inflight.runtime.chat.message_json import to_json
        from inflight.runtime.messages import RequestError
        from inflight.runtime.text.special_text import SpecialText

        self.need_tokenizer()
        if isinstance(prompt, str):
            return list(self.tokenizer.encode(prompt, add_special_tokens=special).ids)
        if self.renderer is None:
            raise ApiError("the model has no chat template; send text", "no_chat_template", "messages")
        # As preprocessing does it: special tokens in messages stay text.
        special_text, marker = SpecialText(self.tokenizer), ""

        def protect(chat: list[Any], given: dict[str, Any]) -> None:
            nonlocal marker
            marker = special_text.protect(chat, given)

        try:
            messages, arguments = to_json("messages", list(prompt)), to_json("chat_template_kwargs", dict(kwargs))
            text = self.renderer.render_json(messages, arguments, protect)
        except RequestError as error:
            raise ApiError(str(error), error.code, "messages") from None
        if marker:
            return special_text.encode(text, marker)
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

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

    def opens_reasoning(self, kwargs: Mapping[str, Any], tags: ReasoningTags) -> bool:
        """Return whether the template ends the prompt with the beginning of reasoning."""
        if self.renderer is None:
            return False
        from inflight.runtime.messages import RequestError

        key = json.dumps({name: kwargs[name] for name in sorted(kwargs) if name not in ("tools", "documents")})
        if key not in self.opened:
            if len(self.opened) >= _MAX_OPENED:
                self.opened.clear()
            try:
                text = self.renderer.render([{"role": "user", "content": "a"}], **json.loads(key))
            except RequestError:
                return False  # the server says what is wrong
            self.opened[key] = text.rstrip().endswith(tags.start)
        return self.opened[key]

    def need_tokenizer(self) -> None:
        if self.tokenizer is None:
            raise ApiError("the gateway has no tokenizer of this model; start it with --tokenizer", "unsupported_input")
