"""A client of a gateway: the calls that commands make, over OpenAI's HTTP API."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Unpack

import httpcore2

from inflight_client._http.channel import ssl_context
from inflight_client.address import Address, Tls, validate_headers
from inflight_client.call import Call, CallOptions, Prompt
from inflight_client.deadline import Deadline
from inflight_client.errors import ERROR_CODES, InflightError
from inflight_client.results import Delta, Generation, Timings, Usage
from inflight_client.retry import Retries, Retry
from inflight_client.sampling import Sampling

_CODES = {
    "context_length_exceeded": "prompt_too_long",
    "unsupported_parameter": "unsupported_input",
    "invalid_value": "invalid_parameter",
    "server_overloaded": "overloaded",
    "invalid_api_key": "permission_denied",
}
_STATUS_CODES = {401: "permission_denied", 403: "permission_denied", 404: "model_not_found", 429: "overloaded"}
_SAME = ("temperature", "top_p", "top_k", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty")
_GUIDES = {"regex": "regex", "ebnf_grammar": "ebnf"}
_CONNECT_SECONDS = 10.0


def is_gateway(address: str) -> bool:
    """Return whether an address is the base URL of OpenAI's API, such as http://127.0.0.1:8080/v1."""
    return address.startswith(("http://", "https://")) and address.rstrip("/").endswith("/v1")


class OpenAIClient:
    """Has the calls of `Client` that stream and generate. Thread-safe; close it, or use `with`."""

    def __init__(
        self,
        address: str,
        model: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        tls: Tls | None = None,
        retry: Retry | None = None,
    ) -> None:
        where = Address.parse(address)
        given = validate_headers({} if headers is None else headers, where)
        self._base = address.rstrip("/")
        self._root = self._base.removesuffix("/v1")
        self._headers: list[tuple[bytes | str, bytes | str]] = [("content-type", "application/json"), *given.items()]
        self._pool = httpcore2.ConnectionPool(ssl_context=ssl_context(tls) if where.secure else None)
        self._retries = Retries(retry or Retry())
        self._model = model

    def __enter__(self) -> OpenAIClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._pool.close()

    def models(self) -> list[str]:
        """Return the names of the served models. Raises InflightError."""
        return [str(each["id"]) for each in json.loads(self.get("/v1/models"))["data"]]

    @property
    def model_name(self) -> str:
        """The model that calls use: the one given, or the only one that is served. Raises InflightError."""
        if self._model is None:
            names = self.models()
            if len(names) != 1:
                known = ", ".join(names) or "none yet"
                raise InflightError(f"the gateway serves these models: {known}; name one", "model_not_ready")
            (self._model,) = names
        return self._model

    def get(self, path: str, timeout: float = _CONNECT_SECONDS) -> bytes:
        """Fetch a page of the gateway. Raises InflightError."""
        with ExitStack() as stack:
            content: bytes = self._open(stack, "GET", path, None, Deadline(timeout)).read()
            return content

    def generate(self, prompt: Prompt, **options: Unpack[CallOptions]) -> Generation:
        """Return the whole answer. Raises InflightError."""
        with self.stream(prompt, **options) as stream:
            for _ in stream:
                pass
        assert stream.generation is not None
        return stream.generation

    def stream(self, prompt: Prompt, **options: Unpack[CallOptions]) -> OpenAIStream:
        """Stream the answer; leaving the stream early cancels the request."""
        values: dict[str, Any] = dict(options)
        values["request_id"] = values.get("request_id") or uuid.uuid4().hex
        return OpenAIStream(self, Call(prompt, True, **values))

    def _open(
        self, stack: ExitStack, method: str, path: str, body: bytes | None, deadline: Deadline
    ) -> httpcore2.Response:
        """Send a request, and return the response once its headers are there. Raises InflightError."""
        left = deadline.left()
        headers = list(self._headers)
        if left is not None and method == "POST":
            headers.append(("x-inflight-deadline-ms", str(max(1, round(left * 1000)))))
        timeouts = {"connect": _CONNECT_SECONDS, "read": left, "write": left, "pool": left}
        try:
            response = stack.enter_context(
                self._pool.stream(
                    method, self._root + path, headers=headers, content=body, extensions={"timeout": timeouts}
                )
            )
            if response.status != 200:
                raise _error(response.status, response.read())
        except (httpcore2.NetworkError, httpcore2.TimeoutException, httpcore2.ProtocolError) as error:
            raise _connection_error(self._base, error, deadline) from None
        return response


class OpenAIStream:
    """The deltas of one answer, and the whole answer at the end."""

    def __init__(self, client: OpenAIClient, call: Call) -> None:
        self._client, self._call = client, call
        self._stack = ExitStack()
        self._closed = threading.Event()
        self._texts: list[str] = []
        self._log_probs: list[float] = []
        self._deltas = self._read()
        self.generation: Generation | None = None

    @property
    def request_id(self) -> str:
        return self._call.request_id

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def __iter__(self) -> Iterator[Delta]:
        return self._deltas

    def __enter__(self) -> OpenAIStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, which cancels the rest of the answer."""
        self._closed.set()
        self._stack.close()

    def _read(self) -> Iterator[Delta]:
        deadline = Deadline(self._call.timeout)
        began, first, attempts = time.monotonic(), 0.0, 0
        reason, usage = None, None
        for attempt in self._client._retries.attempts(deadline, self._closed):
            with attempt:
                attempts += 1
                path, body = request_body(self._call, self._client.model_name)
                response = self._client._open(self._stack, "POST", path, json.dumps(body).encode(), deadline)
        for event in self._events(response, deadline):
            if "error" in event:
                raise _api_error(500, event["error"])
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                text, log_probs = _content(choice)
                reason = choice["finish_reason"] or reason
                first = first or time.monotonic()
                if text or log_probs:
                    self._texts.append(text)
                    self._log_probs += log_probs or ()
                    yield Delta(text, None, None, None, log_probs)
        if reason is None:
            raise InflightError(
                "the gateway ended the answer without saying why; send the request again", "server_gone"
            )
        counts = Usage(usage["prompt_tokens"], usage["completion_tokens"]) if usage else None
        now = time.monotonic()
        self.generation = Generation(
            self.text,
            reason,
            counts,
            Timings((first or now) - began, now - began, attempts),
            self._call.request_id,
            log_probs=tuple(self._log_probs) if self._call.return_log_probs else None,
        )
        yield Delta("", reason, counts)

    def _events(self, response: httpcore2.Response, deadline: Deadline) -> Iterator[dict[str, Any]]:
        rest = b""
        try:
            for part in response.iter_stream():
                *lines, rest = (rest + part).split(b"\n\n")
                if deadline.passed:
                    raise deadline.error()
                for line in lines:
                    if line == b"data: [DONE]":
                        return
                    if line.startswith(b"data: "):
                        yield json.loads(line[6:])
        except (httpcore2.NetworkError, httpcore2.TimeoutException, httpcore2.ProtocolError) as error:
            raise _connection_error(self._client._base, error, deadline) from None


def request_body(call: Call, model: str) -> tuple[str, dict[str, Any]]:
    """Return path and body of a call. Raises InflightError for what OpenAI's API has no field for."""
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": call.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    sampling = call.sampling
    for name, missing in (("bad_words", sampling.bad_words), ("adapter", sampling.adapter is not None)):
        if missing:
            raise InflightError(f"{name} can't be sent through a gateway; leave it out", "unsupported_input")
    if call.return_token_ids:
        raise InflightError("a gateway returns no token ids; leave out the option", "unsupported_input")
    body |= _sampling_fields(sampling)
    if call.priority:
        body["service_tier"] = "priority" if call.priority > 0 else "flex"
    if call.is_chat:
        body["messages"] = list(call.prompt)
        if call.chat_template_kwargs:
            body["chat_template_kwargs"] = dict(call.chat_template_kwargs)
    else:
        body["prompt"] = call.prompt
    if call.return_log_probs:
        body["logprobs"] = True if call.is_chat else 0
    return ("/v1/chat/completions" if call.is_chat else "/v1/completions"), body


def _sampling_fields(sampling: Sampling) -> dict[str, Any]:
    fields = {name: value for name in _SAME if (value := getattr(sampling, name)) is not None}
    # Without these, Triton's models are greedy; OpenAI's API is not.
    if not fields.keys() & {"temperature", "top_p", "top_k"}:
        fields["temperature"] = 0
    if sampling.min_tokens is not None:
        fields["min_tokens"] = sampling.min_tokens
    if sampling.stop:
        fields["stop"] = list(sampling.stop)
    if sampling.end_id is not None:
        if sampling.end_id != -1:
            raise InflightError("an end token can't be sent through a gateway; leave it out", "unsupported_input")
        fields["ignore_eos"] = True
    if (guide := sampling.guide) is not None:
        if guide.type == "json":
            fields["response_format"] = {"type": "json_object"}
        elif guide.type == "json_schema":
            schema = {"name": "schema", "schema": json.loads(guide.text)}
            fields["response_format"] = {"type": "json_schema", "json_schema": schema}
        else:
            fields["response_format"] = {"type": _GUIDES[guide.type], _GUIDES[guide.type]: guide.text}
    return fields


def _content(choice: Mapping[str, Any]) -> tuple[str, tuple[float, ...] | None]:
    """Return text and log probabilities of a chunk's choice; reasoning is text too."""
    told = choice.get("logprobs") or {}
    if "delta" not in choice:
        return choice.get("text") or "", tuple(told.get("token_logprobs", ())) or None
    delta = choice["delta"]
    log_probs = tuple(each["logprob"] for each in told.get("content") or ())
    return (delta.get("reasoning_content") or "") + (delta.get("content") or ""), log_probs or None


def _error(status: int, raw: bytes) -> InflightError:
    try:
        return _api_error(status, json.loads(raw)["error"])
    except (ValueError, TypeError, KeyError):
        return InflightError(
            f"the peer answered with status {status} and no error of OpenAI's API; check the address",
            "unsupported_deployment",
        )


def _api_error(status: int, error: Mapping[str, Any]) -> InflightError:
    code = _CODES.get(str(error.get("code")), str(error.get("code")))
    if code not in ERROR_CODES:
        code = _STATUS_CODES.get(status, "invalid_request" if status < 500 else "server_gone")
    return InflightError(str(error["message"]), code)


def _connection_error(base: str, error: Exception, deadline: Deadline) -> InflightError:
    if deadline.passed:
        return deadline.error()
    if isinstance(error, httpcore2.ConnectError | httpcore2.ConnectTimeout):
        return InflightError(f"no gateway answers at {base}; check the address, or start one", "server_unreachable")
    return InflightError(f"the connection to the gateway at {base} was lost; send the request again", "server_gone")
