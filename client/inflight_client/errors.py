"""The one table of stable error codes, used by every part of inflight, and the client's exceptions."""

from __future__ import annotations

from typing import NamedTuple


class ErrorCode(NamedTuple):
    """What a code means, and what a caller may do about it."""

    meaning: str
    remedy: str
    retry: bool = False


ERROR_CODES: dict[str, ErrorCode] = {
    # before serving
    "checkpoint_not_found": ErrorCode("no checkpoint stands there", "check the path or the hub name"),
    "not_a_checkpoint": ErrorCode("the directory is no Hugging Face checkpoint", "it needs config.json, weights and a tokenizer"),
    "checkpoint_damaged": ErrorCode("a file of the checkpoint is truncated or garbled", "fetch the checkpoint again"),
    "unsupported_architecture": ErrorCode("this target can't compile that architecture", "choose another target or checkpoint"),
    "build_failed": ErrorCode("the compiler gave up", "read the log that the message names"),
    "disk_full": ErrorCode("no space is left where the output goes", "free space or choose another --out"),
    "output_exists": ErrorCode("something that is not ours stands where the output goes", "choose another --out"),
    "engine_not_found": ErrorCode("no engine stands there", "build one with `inflight build`"),
    "engine_damaged": ErrorCode("the engine directory is not what its manifest says", "build it again"),
    "engine_foreign": ErrorCode("the engine was built for something else", "build it again with this version"),
    "server_not_found": ErrorCode("no tritonserver on this machine", "run `inflight doctor`"),
    "server_start_failed": ErrorCode("tritonserver did not come up", "read the server's last lines"),
    "port_in_use": ErrorCode("another program listens on that port", "choose another port, or 0 for any free one"),
    "package_missing": ErrorCode("a package that the command needs is not installed", "install inflight with its extras"),
    "gpu_missing": ErrorCode("the machine has not the GPUs that the engine takes", "serve it where they are, or build it for fewer"),
    "storage_denied": ErrorCode("the storage refuses access, or there are no credentials for it", "give the credentials of somebody who has access"),
    "storage_not_found": ErrorCode("there is no such bucket", "make it, or name another"),
    "storage_unreachable": ErrorCode("the storage does not answer, or not as it should", "check its address, or try again later", retry=True),
    # a request
    "invalid_text": ErrorCode("the prompt is not text the tokenizer can take", "send UTF-8 without NUL"),
    "empty_prompt": ErrorCode("there is nothing to continue", "send at least one character or token"),
    "prompt_too_long": ErrorCode("prompt and answer don't fit the engine", "shorten the prompt or lower max_tokens"),
    "invalid_token_ids": ErrorCode("a token id is outside the vocabulary", "use the engine's own tokenizer"),
    "invalid_parameter": ErrorCode("a parameter has a value that can't be used", "read the message"),
    "invalid_request": ErrorCode("the request doesn't fit the model's tensors", "read the message"),
    "unsupported_input": ErrorCode("the engine can't honour an input that the request uses", "leave the input out"),
    # a server
    "engine_died": ErrorCode("the engine's process ended in the middle of the answer", "send the request again", retry=True),
    "engine_restarting": ErrorCode("the engine is being started again", "wait and send the request again", retry=True),
    "overloaded": ErrorCode("too many requests wait already", "send the request again later", retry=True),
    "server_gone": ErrorCode("the connection to the server broke", "wait until it is back", retry=True),
    "server_unreachable": ErrorCode("nobody answers at that address", "check the address, or start a server", retry=True),
    "model_not_ready": ErrorCode("the server has no such model ready", "wait, or check the model's name", retry=True),
    "cancelled": ErrorCode("the request was cancelled", "nothing to do"),
    "deadline_exceeded": ErrorCode("the time allowed was over before the answer", "allow more time"),
}  # fmt: skip


class InflightError(Exception):
    """A call that failed: one sentence, a stable `code` of `ERROR_CODES`, and whether to try again."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def retry(self) -> bool:
        return ERROR_CODES[self.code].retry
