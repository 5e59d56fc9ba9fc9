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
    "disk_full": ErrorCode("no space is left where the output goes", "free space, or write to another place"),
    "output_exists": ErrorCode("something that is not ours stands where the output goes", "choose another output"),
    "output_unwritable": ErrorCode("the system does not let you write where the output goes", "check its permissions, or choose another output"),
    "engine_not_found": ErrorCode("no engine stands there", "build one with `inflight build`"),
    "engine_damaged": ErrorCode("the engine directory is not what its manifest says", "build it again"),
    "engine_incompatible": ErrorCode("the engine was built for something else", "build it again with this version"),
    "server_not_found": ErrorCode("no tritonserver on this machine", "run `inflight doctor`"),
    "server_start_failed": ErrorCode("tritonserver did not come up", "read the server's last lines"),
    "port_in_use": ErrorCode("another program listens on that port", "choose another port, or 0 for any free one"),
    "package_missing": ErrorCode("a package that the command needs is not installed", "install inflight with its extras"),
    "gpu_missing": ErrorCode("the machine has not the GPUs that the engine takes", "serve it where they are, or build it for fewer"),
    "storage_denied": ErrorCode("the storage or the file refuses access, or there are no credentials for it", "check the file's permissions, or give the credentials of a user who has access"),
    "storage_not_found": ErrorCode("there is no such bucket", "make it, or name another"),
    "storage_unreachable": ErrorCode("the storage does not answer, or not as it should", "check its address, or try again later", retry=True),
    # load tests
    "workload_invalid": ErrorCode("the prompts, trace or distribution of a load test can't be used", "read the message"),
    "run_not_found": ErrorCode("no run of a load test stands there", "check the path; `inflight load run` makes one"),
    "run_damaged": ErrorCode("a file of a run is truncated or garbled", "make the run again"),
    "load_failed": ErrorCode("the load test could not be made, or lost a part of itself", "read the message"),
    # batch jobs
    "input_not_found": ErrorCode("the rows of a batch job are not there", "check the address, the table's or the column's name"),
    "input_invalid": ErrorCode("the input of a batch job is not what it is said to be", "read the message"),
    "input_changed": ErrorCode("the input is not the one that the job began with", "put the old one back, or begin a new job"),
    "output_invalid": ErrorCode("the output of a batch job is none, or can't take these answers", "read the message, and mend the command or the table"),
    "output_failed": ErrorCode("the output of a batch job can't be written just now", "read the message, and resume the job"),
    "job_not_found": ErrorCode("there is no batch job", "check the path; `inflight batch run` makes one"),
    "job_damaged": ErrorCode("a file of a batch job is truncated, garbled or gone", "put it back, or begin a new job"),
    "job_running": ErrorCode("another process runs the batch job", "wait for it, or cancel the job"),
    "job_elsewhere": ErrorCode("another machine runs the batch job, or has until a moment ago", "run the same command later", retry=True),
    "job_mismatch": ErrorCode("the job was begun with another model, template or sampling", "resume it with those, or begin a new job"),
    "job_failed": ErrorCode("the batch job can't go on", "read the message, and resume the job"),
    "row_invalid": ErrorCode("the row is no request", "mend the row"),
    "row_duplicate": ErrorCode("an earlier row has the same id, or one that the output's table takes for the same", "give each row an id of its own"),
    "row_crashed_engine": ErrorCode("engines died under the row, each time that it was asked", "look at the row, and at the engine's log"),
    # a request
    "invalid_text": ErrorCode("the prompt is not text the tokenizer can take", "send a text, in UTF-8 and without NUL"),
    "invalid_messages": ErrorCode("the chat messages can't be rendered with the model's template", "read the message"),
    "no_chat_template": ErrorCode("there is no chat template to render messages with", "send text, or give the client a chat template"),
    "empty_prompt": ErrorCode("there is nothing to continue", "send at least one character or token"),
    "prompt_too_long": ErrorCode("prompt and answer don't fit the engine", "shorten the prompt or lower max_tokens"),
    "invalid_token_ids": ErrorCode("a token id is outside the vocabulary", "use the engine's own tokenizer"),
    "invalid_parameter": ErrorCode("a parameter has a value that can't be used", "read the message"),
    "invalid_request": ErrorCode("the request doesn't fit the model's tensors", "read the message"),
    "unsupported_input": ErrorCode("the engine can't honour an input that the request uses", "leave the input out, or send what the message names"),
    # a server
    "engine_died": ErrorCode("the engine's process ended in the middle of the answer", "send the request again", retry=True),
    "engine_restarting": ErrorCode("the engine is being started again", "wait and send the request again", retry=True),
    "overloaded": ErrorCode("too many requests wait already", "send the request again later", retry=True),
    "server_gone": ErrorCode("the connection to the server broke", "wait until it is back", retry=True),
    "server_unreachable": ErrorCode("nobody answers at that address", "check the address and the proxy, or start a server", retry=True),
    "host_not_found": ErrorCode("the name of the server's host leads to no address", "check the address"),
    "connection_closed": ErrorCode("who listens there ends every connection before a word of the protocol", "check the address: port and scheme", retry=True),
    "model_not_ready": ErrorCode("the server has no such model ready", "wait, or check the model's name", retry=True),
    "model_not_found": ErrorCode("the server has no model of that name", "check the name; `inflight status` lists those it has"),
    "unsupported_deployment": ErrorCode("what answers there is no Triton server, or has no model that the client knows", "check the address and the proxy, or name the model that takes text"),
    "permission_denied": ErrorCode("the server refuses the caller, or its certificate can't be trusted", "check headers, certificates and the address's scheme"),
    "answer_damaged": ErrorCode("parts of the answer were lost, doubled or garbled on the way", "send the request again", retry=True),
    "client_closed": ErrorCode("the client was closed", "make a new one"),
    "client_forked": ErrorCode("the client was made in another process", "make one in each process"),
    "cancelled": ErrorCode("the request was cancelled", "nothing to do"),
    "deadline_exceeded": ErrorCode("the time allowed was over before the answer", "allow more time"),
}  # fmt: skip


class InflightError(Exception):
    """A call that failed: one sentence, a stable `code` of `ERROR_CODES`, what to do, and whether to try again.

    Its class goes by the code, so that callers catch kinds of failures, or all of them:

    >>> error = InflightError("too many requests wait already", "overloaded")
    >>> type(error).__name__, error.retry, error.remedy
    ('Overloaded', True, 'send the request again later')
    """

    def __new__(cls, message: str, code: str) -> InflightError:
        kind = _CLASSES.get(code, cls) if cls is InflightError else cls
        return super().__new__(kind)

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[type[InflightError], tuple[str, str]]:
        return type(self), (str(self), self.code)

    @property
    def retry(self) -> bool:
        """Whether the same call may succeed a little later."""
        return ERROR_CODES[self.code].retry

    @property
    def remedy(self) -> str:
        """What a caller may do about it."""
        return ERROR_CODES[self.code].remedy


class InvalidRequest(InflightError):
    """The request itself is at fault: sent again it fails again."""


class Unsupported(InvalidRequest):
    """The deployment can't do what the request asks for; another one may."""


class Overloaded(InflightError):
    """The server has as many requests waiting as it takes."""


class DeadlineExceeded(InflightError):
    """The time allowed, for the whole answer or for its first token, was over."""


class Cancelled(InflightError):
    """The request was cancelled."""


class ModelNotReady(InflightError):
    """The model, or the engine behind it, is being started, or there is none of that name."""


class ServerGone(InflightError):
    """The server can't be reached, or was lost in the middle of the answer."""


class AnswerDamaged(ServerGone):
    """What came is not what was sent: parts are missing, doubled or garbled."""


class PermissionDenied(InflightError):
    """Server or client refuse the other: a header, a certificate, a restricted call."""


class ClientClosed(InflightError):
    """The client can't be used (any more) in this process."""


_CLASSES: dict[str, type[InflightError]] = {
    "invalid_text": InvalidRequest,
    "invalid_messages": InvalidRequest,
    "no_chat_template": Unsupported,
    "empty_prompt": InvalidRequest,
    "prompt_too_long": InvalidRequest,
    "invalid_token_ids": InvalidRequest,
    "invalid_parameter": InvalidRequest,
    "invalid_request": InvalidRequest,
    "unsupported_input": Unsupported,
    "engine_died": ServerGone,
    "engine_restarting": ModelNotReady,
    "overloaded": Overloaded,
    "server_gone": ServerGone,
    "server_unreachable": ServerGone,
    "host_not_found": ServerGone,
    "connection_closed": ServerGone,
    "model_not_ready": ModelNotReady,
    "model_not_found": ModelNotReady,
    "unsupported_deployment": Unsupported,
    "permission_denied": PermissionDenied,
    "answer_damaged": AnswerDamaged,
    "client_closed": ClientClosed,
    "client_forked": ClientClosed,
    "cancelled": Cancelled,
    "deadline_exceeded": DeadlineExceeded,
}
