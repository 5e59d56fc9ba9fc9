"""Maps a server's error messages to the stable error codes."""

from __future__ import annotations

import re

from inflight_client.errors import ERROR_CODES, InflightError

_STABLE_CODE = re.compile(r"\[([a-z_]+)\]$")
_PREFIX = re.compile(r"^(?:\[request id: [^\]]*\] |in ensemble '[^']*', )+")
"""Triton puts the request's id and the ensemble's name before a model's message."""

# Messages of Triton (core, gRPC and HTTP endpoints, Python backend) and TensorRT-LLM, in lower case; the first match
# decides.
_MESSAGE_CODES = (
    ("permission_denied", ("is restricted, expecting header",)),
    ("overloaded", ("exceeds maximum queue size", "max queue size", "maximum queue size")),
    ("deadline_exceeded", ("request timeout expired", "timed out in queue", "timeout in queue")),
    (
        "model_not_ready",
        (
            "is not healthy",
            "not ready",
            "is not at ready state",
            "is unavailable",
            "has no available versions",
            "server is stopping",
            "stopped accepting new",
            "server exiting",
        ),
    ),
)
_EXCEPTION = re.compile(r"^[\w.]+(?:Error|Exception): ")
_RAISED = re.compile(r"Failed to process the request\(s\) for model (?:instance )?'([^']*?)(?:_\d+)*', message: ")
"""Begins the message of Triton's Python backend for an exception that a model raises, which follows."""
_NOT_FOUND = re.compile(r"unknown model\b.* is not found|^'[^']*'(?: version -?\d+)? is not found")


def error_from_message(message: str, otherwise: str = "invalid_request") -> InflightError:
    """Return the server's message as an error: with the code at its end, the code of Triton's message, or `otherwise`.

    >>> error = error_from_message("in ensemble 'ensemble', text_input is empty; send more [empty_prompt]")
    >>> error.code, str(error)
    ('empty_prompt', 'text_input is empty; send more')
    """
    match = _STABLE_CODE.search(message)
    if match and match[1] in ERROR_CODES:
        return InflightError(_PREFIX.sub("", message[: match.start()].strip()), match[1])
    sentence = exception_message(_PREFIX.sub("", message.strip()))
    code = code_from_message(sentence) or otherwise
    if code == "model_failed" and (raised := _RAISED.search(sentence)):
        sentence = f"the model {raised[1]!r} failed on the request; the server's log says why"
    return InflightError(sentence, code)


def exception_message(message: str) -> str:
    """Return the message without the traceback that a model sends, as upstream's `tensorrt_llm_bls` does, or that
    Triton's Python backend puts after an exception's message."""
    message = message.partition("\n\nAt:\n")[0]
    if not message.startswith("Traceback (most recent call last)"):
        return message
    return _EXCEPTION.sub("", message.splitlines()[-1].strip())


def code_from_message(message: str) -> str | None:
    """Return the code in brackets at the end or the code of Triton's message; None if the message is unknown."""
    match = _STABLE_CODE.search(message)
    if match and match[1] in ERROR_CODES:
        return match[1]
    lower = message.lower()
    if _NOT_FOUND.search(lower):
        return "model_not_found"
    code = next((code for code, words in _MESSAGE_CODES if any(word in lower for word in words)), None)
    return code or ("model_failed" if _RAISED.search(message) else None)


def unreachable(where: str) -> InflightError:
    """Return the error for a failed connection to the server's address `where`."""
    return InflightError(f"no server answers at {where}; check the address or start one", "server_unreachable")


def unknown_host(where: str) -> InflightError:
    """Return the error for a host name that does not resolve."""
    return InflightError(f"the host name in {where} does not resolve; check it", "host_not_found")


def connection_closed(where: str, due: str) -> InflightError:
    """Return the error for a peer that closes new connections, as Triton's ports do for another port's protocol."""
    next_step = "check the address: its port and its scheme"
    if due == "gRPC":
        next_step = f"if this is the HTTP port, write http://{where}"
    return InflightError(
        f"the peer at {where} closes the connection instead of speaking {due}; {next_step}", "connection_closed"
    )


def not_triton(where: str, how: str) -> InflightError:
    """Return the error for a peer that is not a Triton server; `how` is the evidence."""
    return InflightError(
        f"the peer at {where} is not a Triton server ({how}); check the address", "unsupported_deployment"
    )


def connection_lost(where: str, how: str) -> InflightError:
    """Return the error for a connection lost during a call; `how` is the library's message."""
    return InflightError(f"the call to the server at {where} broke ({how}); send the request again", "server_gone")


def mismatched_response(expected: str, got: str) -> InflightError:
    """Return the error for a response that belongs to another request."""
    return InflightError(
        f"request {expected!r} was answered with a response to {got!r}; send the request again",
        "answer_damaged",
    )


def client_closed() -> InflightError:
    return InflightError("the client was closed; make a new one", "client_closed")
