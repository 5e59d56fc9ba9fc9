"""The ensemble's tensors as KServe v2 messages: requests out, deltas in. Shared by the sync and the asyncio client."""

from __future__ import annotations

import ipaddress
import re
import struct
from dataclasses import asdict
from numbers import Integral
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

from inflight_client.errors import ERROR_CODES, InflightError
from inflight_client.results import Delta, Generation, Timings, Usage
from inflight_client.sampling import Sampling

CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
]

_NUMBERS = {"INT32": "<i", "FP32": "<f", "UINT64": "<Q", "BOOL": "<?"}
_SAMPLING_TYPES = {
    "temperature": "FP32",
    "top_k": "INT32",
    "top_p": "FP32",
    "seed": "UINT64",
    "repetition_penalty": "FP32",
    "presence_penalty": "FP32",
    "frequency_penalty": "FP32",
    "min_tokens": "INT32",
    "end_id": "INT32",
}
END_SECONDS = 1.0
"""How long the end of a call is waited for that has brought an error; it comes right behind it."""
_STABLE_CODE = re.compile(r"\[([a-z_]+)\]$")
_ENSEMBLES_PREFIX = re.compile(r"^in ensemble '[^']*', ")
# Triton's own words where a model's process is gone, is being loaded, or was unloaded to drain the server.
_NOT_READY = ("is not healthy", "not ready", "unavailable", "has no available versions", "unknown model")
# gRPC's words where no connection was made: nobody listens there, or the host's name leads nowhere.
_NEVER_CONNECTED = ("failed to connect", "errors resolving", "lookup failed", "dns resolution failed")
_BY_STATUS = {
    grpc.StatusCode.CANCELLED: "cancelled",
    grpc.StatusCode.DEADLINE_EXCEEDED: "deadline_exceeded",
    grpc.StatusCode.INVALID_ARGUMENT: "invalid_request",
    grpc.StatusCode.NOT_FOUND: "model_not_ready",
}


def channel_options(address: str) -> list[tuple[str, int]]:
    """Messages of any length; to this machine itself never through a proxy, whatever the environment says."""
    return [*CHANNEL_OPTIONS, ("grpc.enable_http_proxy", 0)] if _is_loopback(address) else CHANNEL_OPTIONS


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0] if ":" in address.rpartition("]")[2] else address
    host = host.strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def inference_request(model: str, prompt: str, max_tokens: int, sampling: Sampling, stream: bool) -> Any:
    """A ModelInferRequest for one prompt; InflightError for what no server would take."""
    if not (isinstance(max_tokens, Integral) and 1 <= max_tokens < 2**31):
        raise InflightError(f"max_tokens is {max_tokens}; it must be a whole number, 1 or more", "invalid_parameter")
    request = service_pb2.ModelInferRequest(model_name=model)
    try:
        text = prompt.encode()
    except UnicodeEncodeError as error:
        raise InflightError(f"the prompt can't be encoded as UTF-8: {error.reason}", "invalid_text") from None
    _add(request, "text_input", "BYTES", struct.pack("<I", len(text)) + text)
    _add_number(request, "max_tokens", "INT32", max_tokens)
    _add_number(request, "stream", "BOOL", stream)
    _add_number(request, "exclude_input_in_output", "BOOL", True)
    for name, value in _sampling_values(sampling).items():
        _add_number(request, name, _SAMPLING_TYPES[name], value)
    return request


def _sampling_values(sampling: Sampling) -> dict[str, float]:
    """What is given. As TensorRT-LLM has it, a temperature without top_k and top_p would change nothing."""
    values = {name: value for name, value in asdict(sampling).items() if value is not None}
    if values.get("temperature") and not {"top_k", "top_p"} & values.keys():
        values["top_p"] = 1.0
    return values


def delta(response: Any) -> Delta:
    """What one ModelStreamInferResponse adds; InflightError for one that carries an error."""
    if response.error_message:
        raise error_from_message(response.error_message)
    outputs = outputs_by_name(response.infer_response)
    finish_reason = outputs.get("finish_reason")
    text = _string(outputs["text_output"])
    if finish_reason is None:
        # TensorRT-LLM's own backend does not say why an answer ended; Triton says that it did.
        final = response.infer_response.parameters.get("triton_final_response")
        return Delta(text, None if final is None or not final.bool_param else "")
    return Delta(
        text,
        _string(finish_reason),
        Usage(_integer(outputs["num_input_tokens"]), _integer(outputs["num_output_tokens"])),
    )


def generation(deltas: list[Delta]) -> Generation:
    """Put the deltas of a finished answer together."""
    last = deltas[-1]
    text = "".join(part.text for part in deltas)
    return Generation(text, last.finish_reason or "", last.usage, Timings(0.0, 0.0), "")


def error_from_message(message: str) -> InflightError:
    """The server's own sentence; its stable code stands in brackets at the end."""
    found = _stable_code(message)
    if found:
        sentence = message[: found.start()].strip()
        return InflightError(_ENSEMBLES_PREFIX.sub("", sentence), found[1])
    if any(words in message.lower() for words in _NOT_READY):
        return InflightError(message, "model_not_ready")
    return InflightError(message, "invalid_request")


def error_from_rpc(error: grpc.RpcError, address: str) -> InflightError:
    """A broken call: never connected, gone in the middle, or ended by a status of its own."""
    status, details = error.code(), error.details() or ""
    if _stable_code(details):
        return error_from_message(details)
    if status in _BY_STATUS:
        return InflightError(details or status.name.lower(), _BY_STATUS[status])
    if status is grpc.StatusCode.UNAVAILABLE and any(words in details.lower() for words in _NEVER_CONNECTED):
        return InflightError(f"no server answers at {address}; check the address or start one", "server_unreachable")
    return InflightError(
        f"the call to the server at {address} broke ({details or status.name.lower()}); send the request again",
        "server_gone",
    )


def ended_early(address: str) -> InflightError:
    """For a stream that the server ended before the delta that says why."""
    return InflightError(
        f"the server at {address} ended the answer without saying why; send the request again", "server_gone"
    )


def _stable_code(message: str) -> re.Match[str] | None:
    found = _STABLE_CODE.search(message)
    return found if found and found[1] in ERROR_CODES else None


def outputs_by_name(response: Any) -> dict[str, bytes]:
    """The raw contents of each output of a ModelInferResponse."""
    return {output.name: raw for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)}


def _string(raw: bytes) -> str:
    """The first element of a BYTES tensor: four bytes of length, then UTF-8."""
    return raw[4 : 4 + int.from_bytes(raw[:4], "little")].decode()


def _integer(raw: bytes) -> int:
    return int.from_bytes(raw[:4], "little", signed=True)


def _add_number(request: Any, name: str, datatype: str, value: float) -> None:
    _add(request, name, datatype, struct.pack(_NUMBERS[datatype], value))


def _add(request: Any, name: str, datatype: str, raw: bytes) -> None:
    tensor = request.inputs.add()
    tensor.name, tensor.datatype = name, datatype
    tensor.shape.extend([1, 1])
    request.raw_input_contents.append(raw)
