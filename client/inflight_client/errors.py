"""The one table of stable error codes, used by every part of inflight, and the client's exceptions."""

from __future__ import annotations

from typing import NamedTuple


class InflightError(Exception):
    """A failed call: a message, a stable `code` from `ERROR_CODES`, the remedy, and whether to retry.

    The code determines the class, so that callers can catch one kind of failure or all of them:

    >>> error = InflightError("too many requests wait already", "overloaded")
    >>> type(error).__name__, error.retry, error.remedy
    ('Overloaded', True, 'send the request again later')
    """

    def __new__(cls, message: str, code: str) -> InflightError:
        row = ERROR_CODES.get(code)
        return super().__new__(row.kind if row is not None and cls is InflightError else cls)

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after: float | None = None
        """Seconds after which the server asks to send the request again, if it says so."""

    def __reduce__(self) -> tuple[type[InflightError], tuple[str, str]]:
        return type(self), (str(self), self.code)

    def at(self, place: str) -> InflightError:
        """Return the same error with its place before the message."""
        error = InflightError(f"{place}: {self}", self.code)
        error.retry_after = self.retry_after
        return error

    @property
    def retry(self) -> bool:
        """Whether the same call may succeed later."""
        return ERROR_CODES[self.code].retry

    @property
    def remedy(self) -> str:
        """What the caller can do."""
        return ERROR_CODES[self.code].remedy


class InvalidRequest(InflightError):
    """The request is invalid; sending it again fails again."""


class Unsupported(InvalidRequest):
    """The deployment does not support the request; another one may."""


class Overloaded(InflightError):
    """The server's queue is full."""


class DeadlineExceeded(InflightError):
    """The timeout of the answer or of its first token expired."""


class Cancelled(InflightError):
    """The request was cancelled."""


class ModelNotReady(InflightError):
    """The model or its engine is starting, or the server has no model of that name."""


class ServerGone(InflightError):
    """The server can't be reached, or the connection was lost during the answer."""


class AnswerDamaged(ServerGone):
    """Parts of the answer are missing, duplicated or corrupted."""


class PermissionDenied(InflightError):
    """The server or the client rejects the other: a header, a certificate, a restricted call."""


class ClientClosed(InflightError):
    """The client is closed, or was created in another process."""


class ErrorCode(NamedTuple):
    """The meaning of a code, what the caller can do, the class of its errors, and whether to retry."""

    meaning: str
    remedy: str
    kind: type[InflightError] = InflightError
    retry: bool = False


ERROR_CODES: dict[str, ErrorCode] = {
    # before serving
    "checkpoint_not_found": ErrorCode("there is no checkpoint at that path", "check the path or the hub name"),
    "not_a_checkpoint": ErrorCode("the directory is not a Hugging Face checkpoint", "name one with config.json, a tokenizer, and weights in safetensors or an openvino_model.xml"),
    "checkpoint_damaged": ErrorCode("a file of the checkpoint is truncated or corrupt", "download the checkpoint again"),
    "unsupported_architecture": ErrorCode("this target does not support the architecture", "choose another target or checkpoint"),
    "build_failed": ErrorCode("compiling the engine failed", "look up the error in the log that the message names"),
    "disk_full": ErrorCode("the disk of the output is full", "free space, or write to another disk"),
    "output_exists": ErrorCode("the output exists and was not made by inflight, or with other options", "choose another output"),
    "output_unwritable": ErrorCode("you have no permission to write the output", "check its permissions, or choose another output"),
    "engine_not_found": ErrorCode("there is no engine at that path", "build one with `inflight build`"),
    "engine_damaged": ErrorCode("the engine directory does not match its manifest", "rebuild it with `inflight build`"),
    "engine_incompatible": ErrorCode("the engine was built for another version, target or GPU", "rebuild it with `inflight build`"),
    "engine_in_use": ErrorCode("another process serves or builds the cached engine", "stop that process, then run `inflight rm` again"),
    "server_not_found": ErrorCode("tritonserver is not installed on this machine", "run `inflight doctor`"),
    "server_start_failed": ErrorCode("tritonserver did not start", "read the last lines of its log, then run `inflight doctor`"),
    "port_in_use": ErrorCode("another program uses the port", "choose another port, or 0 for any free port"),
    "package_missing": ErrorCode("a package that the command needs is not installed", "install the extra that the message names"),
    "gpu_missing": ErrorCode("this machine lacks the GPUs that the engine needs", "serve it on such a machine, or build it for fewer GPUs"),
    "keys_invalid": ErrorCode("the file of API keys does not have the expected content", "correct what the message names, or restore the file from a backup"),
    "audit_unusable": ErrorCode("the audit log can't be written, or another gateway writes it", "do what the message says, or pass another --audit"),
    "storage_denied": ErrorCode("the storage or the file denies access", "check its permissions, or pass credentials that have access"),
    "storage_not_found": ErrorCode("the bucket does not exist", "create it, or name another"),
    "storage_unreachable": ErrorCode("the storage does not answer as expected", "check its address, or try again later", retry=True),
    # load tests
    "workload_invalid": ErrorCode("the prompts, trace or distribution of a load test are invalid", "correct the field that the message names; docs/workloads.md lists the formats"),
    "run_not_found": ErrorCode("there is no load test run at that path", "check the path; `inflight load run` creates one"),
    "run_damaged": ErrorCode("a file of the run is truncated or corrupt", "run the load test again"),
    "load_failed": ErrorCode("the load test failed or lost one of its workers", "fix the cause that the message names, and run it again"),
    # batch jobs
    "input_not_found": ErrorCode("the input of the batch job, or a file that a row names, does not exist", "check the address, and the name of the table or column"),
    "input_invalid": ErrorCode("the input of the batch job does not have the expected format", "correct the input, or pass --format and the column options that fit it"),
    "input_changed": ErrorCode("the input changed since the job started", "restore the original input, or start a new job"),
    "output_invalid": ErrorCode("the output does not exist or cannot store these answers", "choose another --out, or change the table as the message says"),
    "output_failed": ErrorCode("writing the output failed", "fix the storage or the database, then run `inflight batch resume`"),
    "job_not_found": ErrorCode("there is no batch job at that path", "check the path; `inflight batch run` creates one"),
    "job_damaged": ErrorCode("a file of the batch job is truncated, corrupt or missing", "restore it from a backup, or start a new job"),
    "job_running": ErrorCode("another process is running the batch job", "wait for it, or run `inflight batch cancel`"),
    "job_elsewhere": ErrorCode("another machine holds the lease of the batch job", "run the same command again once the lease has expired", retry=True),
    "job_mismatch": ErrorCode("the job was started with a different model, template or sampling settings", "resume it with the original settings, or start a new job"),
    "job_failed": ErrorCode("the batch job cannot continue", "fix the cause that the message names, then run `inflight batch resume`"),
    "row_invalid": ErrorCode("the row is not a valid request", "fix the row and send it again"),
    "row_duplicate": ErrorCode("an earlier row has the same id, or an id that the output's table treats as the same", "give each row a unique id"),
    "row_crashed_worker": ErrorCode("a message was delivered several times to workers that died with it", "inspect the message, or raise --max-deliveries"),
    "row_crashed_engine": ErrorCode("engines crashed each time they ran the row", "inspect the row and the engine's log"),
    "job_expired": ErrorCode("the completion window ended before the row was sent", "send the row again", retry=True),
    # evaluations
    "evaluation_not_found": ErrorCode("there is no finished evaluation at that path", "check the path; `inflight evaluate run` creates one, and the same command completes it"),
    "evaluation_damaged": ErrorCode("a file of the evaluation was changed or is truncated", "run the evaluation again"),
    "evaluations_differ": ErrorCode("the evaluations are not of the same rows and metrics", "evaluate both with the same golden set, --reference and --metric"),
    "scores_alike": ErrorCode("the server's scores don't distinguish the choices", "evaluate at a server that returns log probabilities of prompts"),
    # checks of the gateway
    "content_filter": ErrorCode("a check of the gateway refuses the text", "change the text", InvalidRequest),
    "check_unavailable": ErrorCode("a check of the gateway gave no verdict in time", "send the request again later", retry=True),
    # files and batches of the gateway
    "file_not_found": ErrorCode("there is no such file, or it has expired", "check the id, or upload the file again"),
    "file_too_large": ErrorCode("the file has more bytes or requests than are allowed", "split it into several files"),
    "batch_not_found": ErrorCode("there is no such batch", "check the id"),
    "batch_ended": ErrorCode("the batch ends or has ended, so it cannot be cancelled", "retrieve it; its status says how it ended"),
    # a request
    "invalid_text": ErrorCode("the prompt is not text that the tokenizer accepts", "send UTF-8 text without NUL characters", InvalidRequest),
    "invalid_messages": ErrorCode("the model's chat template cannot render the messages", "correct the roles and contents; the message quotes the template's error", InvalidRequest),
    "no_chat_template": ErrorCode("the deployment and the client have no chat template", "send text, or pass chat_template to the client", Unsupported),
    "empty_prompt": ErrorCode("the prompt is empty", "send at least one character or token", InvalidRequest),
    "prompt_too_long": ErrorCode("the prompt and the answer together exceed the engine's limit", "shorten the prompt or lower max_tokens", InvalidRequest),
    "invalid_token_ids": ErrorCode("a token id is outside the vocabulary", "tokenize with the engine's own tokenizer", InvalidRequest),
    "invalid_parameter": ErrorCode("a parameter has an invalid value", "pass a value in the range that the message gives", InvalidRequest),
    "invalid_request": ErrorCode("the request does not match the model's inputs", "compare its names, types and shapes with docs/request-contract.md", InvalidRequest),
    "unsupported_input": ErrorCode("the engine does not support an input of the request", "leave the input out, or send the one that the message names", Unsupported),
    "text_not_computed": ErrorCode("the engine failed on the text, or its values for it are not finite numbers", "change the text; if other texts fail as well, build the engine again, in another precision", InvalidRequest),
    "audio_unsupported": ErrorCode("the audio is of a format, a rate or channels that are not decoded", "convert it to wav, flac, ogg or mp3", Unsupported),
    "clip_not_computed": ErrorCode("the engine failed on the clip", "send other audio; if other clips fail as well, build the engine again", InvalidRequest),
    "audio_damaged": ErrorCode("the audio can't be decoded, has no samples, or samples that are not finite numbers", "send other audio", InvalidRequest),
    "audio_too_long": ErrorCode("the audio is longer than is allowed, or a clip longer than the model hears at once", "send it in parts; a clip may have 30 seconds", InvalidRequest),
    # a server
    "model_failed": ErrorCode("the model's code raised an exception on the request", "read the server's log; if every request fails so, correct the model", InvalidRequest),
    "engine_died": ErrorCode("the engine's process ended while it generated the answer", "send the request again", ServerGone, retry=True),
    "engine_restarting": ErrorCode("the engine is restarting", "wait, then send the request again", ModelNotReady, retry=True),
    "overloaded": ErrorCode("too many requests are waiting", "send the request again later", Overloaded, retry=True),
    "server_gone": ErrorCode("the connection to the server was lost", "wait until the server is back, then send the request again", ServerGone, retry=True),
    "server_unreachable": ErrorCode("no server answers at that address", "check the address and the proxy, or start a server", ServerGone, retry=True),
    "host_not_found": ErrorCode("the host name does not resolve", "check the address", ServerGone),
    "connection_closed": ErrorCode("the peer closes connections immediately", "check the port and the scheme of the address", ServerGone, retry=True),
    "model_not_ready": ErrorCode("the model is not ready", "wait, or check its name with `inflight status`", ModelNotReady, retry=True),
    "model_not_found": ErrorCode("the server has no model of that name", "check the name; `inflight status` lists the models", ModelNotReady),
    "unsupported_deployment": ErrorCode("the peer is not a Triton server, or has no model that the client supports", "check the address and the proxy, or name the model that takes text", Unsupported),
    "permission_denied": ErrorCode("the server denies access, or its certificate is not trusted", "check headers, certificates and the scheme of the address", PermissionDenied),
    "answer_invalid": ErrorCode("the answer is not the JSON that the request asked for", "raise max_tokens if it was cut off; otherwise ask for a simpler schema, or another model"),
    "answer_damaged": ErrorCode("parts of the answer were lost, duplicated or corrupted in transit", "send the request again", AnswerDamaged, retry=True),
    "client_closed": ErrorCode("the client is closed", "create a new client", ClientClosed),
    "client_forked": ErrorCode("the client was created in another process", "create one in each process", ClientClosed),
    "cancelled": ErrorCode("the request was cancelled", "nothing to do", Cancelled),
    "deadline_exceeded": ErrorCode("the answer did not arrive in time", "pass a longer timeout", DeadlineExceeded),
}  # fmt: skip
