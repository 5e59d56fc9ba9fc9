"""The settings of a client, the same for both clients."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inflight_client.address import Address, Tls, validate_headers
from inflight_client.call import Call, CallOptions, Prompt, TokenIds
from inflight_client.encoder_call import MODELS, EncoderCallOptions, EncoderOptions, Task
from inflight_client.errors import InflightError
from inflight_client.sampling import Sampling
from inflight_client.validation import check_timeout, invalid_value

if TYPE_CHECKING:
    from inflight_client.audio.clip_call import ClipOptions, TranscribeOptions
    from inflight_client.chat_template import ChatTemplate

METRICS_PORT = 8002
API_KEY_VARIABLE = "OPENAI_API_KEY"
_SAMPLE_PROMPT: Prompt = [{"role": "user", "content": ""}]
"""Messages, since some options are not valid with text."""


@dataclass(frozen=True)
class ClientSettings:
    """The server's address, headers and certificates, and the defaults of every call."""

    address: Address
    model: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    tls: Tls | None = None
    timeout: float | None = None
    chat_template: ChatTemplate | None = None
    metrics_url: str = ""

    @classmethod
    def from_arguments(
        cls,
        address: str | Address,
        model: str | None,
        headers: Mapping[str, str] | None,
        tls: Tls | None,
        timeout: float | None,
        chat_template: Any,
        metrics_url: str | None,
    ) -> ClientSettings:
        """Validate the settings. Raises InflightError (`invalid_parameter`, `no_chat_template`)."""
        where = address if isinstance(address, Address) else Address.parse(address)
        if model is not None and not (isinstance(model, str) and model and model.isprintable()):
            raise invalid_value("model", model, "the name of a model, or None for the server's text model")
        if tls is not None and not isinstance(tls, Tls):
            raise invalid_value("tls", tls, "a Tls, or None")
        if metrics_url is not None and not isinstance(metrics_url, str):
            raise invalid_value("metrics_url", metrics_url, "a URL, or None")
        check_timeout("timeout", timeout)
        if tls is not None and not where.secure:
            raise InflightError(
                f"certificates are given, but the address {where.url!r} does not use TLS; write grpcs:// or https://",
                "invalid_parameter",
            )
        checked = validate_headers({} if headers is None else headers, where)
        if where.openai:
            metrics_url = metrics_url or f"{where.url.removesuffix('/v1')}/metrics"
            checked = _with_api_key(checked, where)
        return cls(
            where,
            model or where.model or None,
            checked,
            tls,
            timeout,
            _template(chat_template),
            metrics_url or "",
        )

    def metrics_page(self, port: object) -> str:
        """Return the URL of the metrics, of which the server published the port if it is one of ours."""
        host = f"[{self.address.host}]" if ":" in self.address.host else self.address.host
        return self.metrics_url or f"http://{host}:{port if isinstance(port, int) else METRICS_PORT}/metrics"

    def call(self, prompt: Prompt | TokenIds, options: Mapping[str, Any], stream: bool) -> Call:
        """Return a call; the id and the timeout have defaults."""
        _check_names("stream" if stream else "generate", options, CallOptions)
        values = {"timeout": self.timeout, **options}
        return Call(prompt, stream, **{**values, "request_id": values.get("request_id") or uuid.uuid4().hex})

    def encoder_options(self, task: Task, options: EncoderCallOptions, **more: Any) -> EncoderOptions:
        """Return the options of a call of an encoder, with `more` of its task; model and timeout have defaults."""
        _check_names(task, options, EncoderCallOptions)
        model = self.model or ("" if self.address.openai else MODELS[task])
        arguments: dict[str, Any] = {**options, **more}
        if arguments.get("timeout") is None:
            arguments["timeout"] = self.timeout
        return EncoderOptions(task, model, openai=self.address.openai, **arguments)

    def clip_options(self, options: TranscribeOptions) -> ClipOptions:
        """Return the options of a call that transcribes."""
        from inflight_client.audio.clip_call import ClipOptions, TranscribeOptions

        _check_names("transcribe", options, TranscribeOptions)
        model = self.model or ("" if self.address.openai else MODELS["transcribe"])
        arguments: dict[str, Any] = {**options}
        if arguments.get("timeout") is None:
            arguments["timeout"] = self.timeout
        return ClipOptions(model, openai=self.address.openai, **arguments)

    def validate_options(self, options: Mapping[str, Any]) -> None:
        """Raise the errors that all of many calls would have before the first is sent."""
        _check_names("generate_many", options, CallOptions)
        self.call(_SAMPLE_PROMPT, options, stream=False)


def _with_api_key(headers: dict[str, str], address: Address) -> dict[str, str]:
    """Add the API key that the address names, or to headers without one the environment's, as OpenAI's own client does.

    An `openai+` address names its key: the key of one service is not sent to another.
    """
    if "authorization" in headers and not address.key:
        return headers
    key = address.api_key() if address.backend else os.environ.get(API_KEY_VARIABLE, "").strip()
    if not key:
        return headers
    return validate_headers({**headers, "authorization": f"Bearer {key}"}, address)


def _check_names(method: str, options: Mapping[str, Any], allowed: type) -> None:
    """Raise Python's TypeError for an unknown option, with a hint at the right place."""
    for name in options.keys() - allowed.__annotations__.keys():
        if allowed is CallOptions and name in Sampling.__dataclass_fields__:
            hint = f"pass sampling options as sampling=Sampling({name}=...)"
        else:
            hint = f"it takes {', '.join(allowed.__annotations__)}"
        raise TypeError(f"{method}() got an unexpected keyword argument {name!r}; {hint}")


def _template(template: Any) -> ChatTemplate | None:
    """Return the given template, or load it from a directory."""
    if template is None:
        return None
    from inflight_client.chat_template import ChatTemplate

    if isinstance(template, ChatTemplate):
        return template
    if not (isinstance(template, str | Path) and str(template)):
        raise invalid_value(
            "chat_template", template, "the directory of a checkpoint or tokenizer, a ChatTemplate, or None"
        )
    return ChatTemplate.from_directory(template)
