"""Chat messages rendered by the client, for deployments that accept only text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inflight_client.errors import InflightError

if TYPE_CHECKING:
    from inflight.text.chat_template import ChatRenderer

_ADD_BOS_FAMILIES = ("Llama", "CodeLlama", "Gemma", "Cohere")
"""Families for which transformers adds a BOS token by `add_bos_token` and ignores tokenizer.json."""


class ChatTemplate:
    """The chat template of a checkpoint, and whether its tokenizer adds a BOS token.

    Servers tokenize the rendered text like any other text, and most tokenizers add a BOS token before it.
    If the rendered text already begins with that token, `without_bos` removes it.
    """

    def __init__(self, renderer: ChatRenderer, adds_bos: bool) -> None:
        self._renderer = renderer
        self.adds_bos = adds_bos
        """Whether the tokenizer adds BOS before a text when it adds special tokens."""

    @classmethod
    def from_directory(cls, path: str | Path) -> ChatTemplate:
        """Load the template from a checkpoint's or tokenizer's directory.

        Raises InflightError `no_chat_template` if it has none, or if the renderer's package is not installed.
        """
        from inflight.common.request_error import RequestError
        from inflight.text.chat_template import ChatRenderer

        try:
            renderer = ChatRenderer.from_directory(path)
        except RequestError as error:
            raise InflightError(str(error), error.code) from None
        if renderer is None:
            raise InflightError(
                f"{path} has no chat template; give the directory of a checkpoint or tokenizer with"
                " chat_template.jinja, or a chat_template in its tokenizer_config.json",
                "no_chat_template",
            )
        return cls(renderer, _adds_bos(Path(path), renderer.bos_token))

    @property
    def bos(self) -> str:
        """Return the text of the BOS token; empty if the tokenizer has none."""
        return self._renderer.bos_token

    def render(self, messages: Sequence[Mapping[str, Any]], /, **kwargs: Any) -> str:
        """Render a conversation up to the start of the answer. Raises InvalidRequest `invalid_messages`."""
        from inflight.common.request_error import RequestError

        try:
            return self._renderer.render(messages, **kwargs)
        except RequestError as error:
            raise InflightError(str(error), error.code) from None

    def without_bos(self, text: str, adds_special_tokens: bool | None) -> str:
        """Return the text without its BOS token if the server adds one, so that the prompt does not begin with two.

        `adds_special_tokens` is the setting of the server's preprocessing; None counts as yes, TensorRT-LLM's default.
        If the template has no BOS and the server's tokenizer adds one, the client cannot prevent it.
        """
        if self.bos and self.adds_bos and adds_special_tokens is not False:
            return text.removeprefix(self.bos)
        return text


def _adds_bos(directory: Path, bos: str) -> bool:
    """Return whether the tokenizer in the directory, loaded by transformers, adds BOS before a text."""
    if not bos:
        return False
    settings = _read_json(directory / "tokenizer_config.json")
    if str(settings.get("tokenizer_class", "")).removesuffix("Fast").removesuffix("Tokenizer") in _ADD_BOS_FAMILIES:
        return bool(settings.get("add_bos_token", True))
    tokenizer = _read_json(directory / "tokenizer.json")
    if not tokenizer:  # slow tokenizers use the setting
        return bool(settings.get("add_bos_token", False))
    try:
        return _begins_with(tokenizer.get("post_processor"), bos)
    except (AttributeError, LookupError, TypeError):  # not a post-processor that a tokenizer can load
        return False


def _begins_with(processor: Any, bos: str) -> bool:
    """Return whether a post-processor of tokenizer.json adds the token before a single text."""
    if not isinstance(processor, Mapping):
        return False
    if processor.get("type") == "Sequence":
        return any(_begins_with(each, bos) for each in processor.get("processors", ()))
    if processor.get("type") in ("BertProcessing", "RobertaProcessing"):
        return bool((processor.get("cls") or [""])[0] == bos)
    first = (processor.get("single") or [{}])[0]
    return bool((first.get("SpecialToken") or {}).get("id") == bos)


def _read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file; return an empty one if the file does not exist."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise InflightError(f"{path} can't be read ({error}); fix the file, or send text", "no_chat_template") from None
    return content if isinstance(content, dict) else {}
