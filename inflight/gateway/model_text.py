"""What the gateway knows of a model's text: it tokenizes prompts, and converts the tokens of answers to text."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from inflight_client import Deployment, InflightError
from inflight_client.call import Prompt, TokenIds

from inflight.common.request_error import RequestError
from inflight.gateway.settings import GatewaySettings
from inflight.openai_api.errors import ApiError, context_length_exceeded
from inflight.openai_api.token_text import TokenTexts
from inflight.openai_api.tool_calls.formats import lacks_format
from inflight.text.detokenizer import Detokenizer
from inflight.text.message_json import to_json
from inflight.text.prompt_encoder import IncrementalWork, PromptEncoder
from inflight.text.text_stream import TextStream
from inflight.text.tokenizer import encode, load_tokenizer

logger = logging.getLogger("inflight.gateway")
T = TypeVar("T")

_LONG_CHARACTERS = 16_384
"""A longer text is rendered and tokenized in a thread for such texts."""
_LONG_TEXTS = ThreadPoolExecutor(1, "long-texts")


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt's token ids; of messages also the text that was tokenized."""

    ids: tuple[int, ...]
    text: str = ""


@dataclass(frozen=True)
class ModelText:
    """The parts that need the checkpoint's files are None if the gateway has none."""

    encoder: PromptEncoder | None = None
    detokenizer: Detokenizer | None = None
    token_texts: TokenTexts | None = None
    add_special_tokens: bool = True
    end_ids: tuple[int, ...] = ()
    digest: str = ""
    """Of what decides on the tokens of a prompt and the text of an answer; "" if the server does."""

    @classmethod
    def unknown(cls) -> ModelText:
        return cls()

    @classmethod
    def load(cls, deployment: Deployment, settings: GatewaySettings) -> ModelText:
        """Load the files of `--tokenizer`, or of an engine that is served from this machine."""
        named, served = settings.tokenizer, deployment.served
        path = Path(named or str(served.get("engine_dir") or ""))
        if not _is_file(path / "tokenizer.json"):
            if named:
                raise InflightError(
                    f"{path} has no tokenizer.json; pass the checkpoint's directory", "invalid_parameter"
                )
            return cls.unknown()
        try:
            tokenizer = load_tokenizer(str(path))
        except Exception as error:  # the library raises its own base class
            logger.warning("%s/tokenizer.json can't be read: %s", path, error)
            return cls.unknown()
        encoder = PromptEncoder(tokenizer, path, bool(served.get("special_tokens_in_messages")))
        if not encoder.template:
            logger.warning("%s", encoder.refusal)
        elif lacks_format(encoder.template, settings.tool_call_parser):
            logger.warning(
                "the format in which the chat template of %s asks for tool calls is unknown: requests with tools need"
                " tool_choice required, or start the gateway with --tool-call-parser",
                path,
            )
        detokenizer = Detokenizer(tokenizer, bool(served.get("skip_special_tokens", True)))
        special = bool(served.get("add_special_tokens", True))
        end_ids = _end_ids(path)
        digest = hashlib.sha256(repr((encoder.template, end_ids)).encode())
        for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
            digest.update((path / name).read_bytes() if _is_file(path / name) else b"")
        return cls(encoder, detokenizer, TokenTexts(tokenizer), special, end_ids, digest.hexdigest())

    @property
    def template(self) -> str:
        """The sources of the chat templates."""
        return "" if self.encoder is None else self.encoder.template

    @property
    def tokenizer(self) -> Any:
        return None if self.encoder is None else self.encoder.tokenizer

    def check_size(self, prompt: Prompt | TokenIds, characters: int, max_tokens: int | None) -> None:
        """Raise ApiError for a prompt that is too long in any tokenization, before it is tokenized."""
        if max_tokens is None or self.encoder is None:
            return
        if isinstance(prompt, TokenIds):
            least = len(prompt.ids)
        else:
            least = max(0 if isinstance(prompt, str) else len(prompt), characters // self.encoder.longest_token)
        if least >= max_tokens:
            raise context_length_exceeded(
                max_tokens, least, "prompt" if isinstance(prompt, str | TokenIds) else "messages"
            )

    async def encode(
        self,
        prompt: Prompt | TokenIds,
        kwargs: Mapping[str, Any],
        special: bool | None = None,
        max_tokens: int | None = None,
    ) -> EncodedPrompt:
        """Return the token ids of a text or of rendered messages, as preprocessing does. Raises ApiError.

        `special` replaces the deployment's setting for texts. A text with far more than `max_tokens` is refused before
        it is tokenized whole. The work is done in threads; long texts wait for each other, and no short one for them.
        """
        if isinstance(prompt, TokenIds):
            return EncodedPrompt(prompt.ids)
        encoder, special = self.need_encoder(), self.add_special_tokens if special is None else special
        try:
            if isinstance(prompt, str):
                return EncodedPrompt(tuple(await _finish(encoder.encode(prompt, special, max_tokens))))
            messages, arguments = to_json("messages", list(prompt)), to_json("chat_template_kwargs", dict(kwargs))
            long = len(messages) + len(arguments) > _LONG_CHARACTERS
            chat = await _in_thread(long, encoder.render, messages, arguments)
            return EncodedPrompt(tuple(await _finish(encoder.encode(chat, special, max_tokens))), chat.text)
        except RequestError as error:
            raise ApiError(str(error), error.code, "prompt" if isinstance(prompt, str) else "messages") from None

    async def encode_words(self, words: Sequence[str]) -> dict[str, list[int]]:
        """Return the token ids of stop words and bad words, encoded in a thread. Raises ApiError."""
        if not words:
            return {}
        tokenizer, long = self.need_encoder().tokenizer, sum(map(len, words)) > _LONG_CHARACTERS
        return dict(zip(words, await _in_thread(long, encode, tokenizer, words, False), strict=True))

    def answer_text(self, prompt_ids: Sequence[int], word_ids: Mapping[str, list[int]], kept: str = "") -> TextStream:
        """Return what converts the tokens of one answer to these; the gateway must have the model's tokenizer.

        Special tokens that `kept` contains are in the text.
        """
        assert self.detokenizer is not None
        return TextStream(self.detokenizer.keeping(kept), prompt_ids, word_ids, self.end_ids)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Return the text of token ids. Raises ApiError for an id outside the vocabulary."""
        tokenizer = self.need_encoder().tokenizer
        for each in ids:
            if tokenizer.id_to_token(each) is None:
                raise ApiError(f"the token id {each} is outside the vocabulary", "invalid_token_ids", "tokens")
        text: str = tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def need_encoder(self) -> PromptEncoder:
        """Return the encoder of prompts. Raises ApiError if the gateway has no tokenizer."""
        if self.encoder is None:
            raise ApiError("the gateway has no tokenizer of this model; start it with --tokenizer", "unsupported_input")
        return self.encoder


async def _in_thread(long: bool, work: Callable[..., T], *args: Any) -> T:
    return await asyncio.get_running_loop().run_in_executor(_LONG_TEXTS if long else None, work, *args)


async def _finish(work: IncrementalWork) -> Any:
    """Do work in threads, a piece at a time, and return its result."""

    def step() -> tuple[int | None, Any]:
        try:
            return next(work), None
        except StopIteration as done:
            return None, done.value

    characters, result = step()  # the first piece is only announced
    while characters is not None:
        characters, result = await _in_thread(characters > _LONG_CHARACTERS, step)
    return result


def _end_ids(directory: Path) -> tuple[int, ...]:
    """Return the end tokens that an engine's or a checkpoint's files name."""
    for name, key in (
        ("engine.json", "end_ids"),
        ("generation_config.json", "eos_token_id"),
        ("config.json", "eos_token_id"),
    ):
        try:
            ids = json.loads((directory / name).read_bytes())[key]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
        ids = ids if isinstance(ids, list) else [ids]
        if ids and all(type(each) is int for each in ids):
            return tuple(ids)
    return ()


def _is_file(path: Path) -> bool:
    """Return whether there is a file that this user can reach."""
    try:
        return path.is_file()
    except OSError:
        return False
