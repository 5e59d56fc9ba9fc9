"""The models of encoders, `whisper` and `text2text`: texts or clips in, one result for each, in batches."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Generator, Iterator
from typing import Any

import triton_python_backend_utils as pb_utils

from inflight.common.cpu_affinity import use_engine_cores
from inflight.common.micro_batch import default_batch_tokens
from inflight.common.request_error import RequestError
from inflight.runtime.encoders.batch_planner import PlannerLimits
from inflight.runtime.encoders.batch_runner import Batcher
from inflight.runtime.encoders.encoder import load_engines
from inflight.runtime.encoders.manifest import EncoderDescription, describe
from inflight.runtime.encoders.tokenize import EncoderTokenizer, PlainText, TokenizedText
from inflight.runtime.engine.request_values import deadline_from
from inflight.runtime.metrics.definitions import ENCODER_FAMILIES
from inflight.runtime.metrics.encoder_metrics import EncoderMetrics
from inflight.runtime.speech.clip import Clip
from inflight.runtime.triton.bounded_strings import bound_strings
from inflight.runtime.triton.encoders.answer import AnswerFormat, EncoderAnswer
from inflight.runtime.triton.encoders.tasks import TASKS, Task, TextRequest, TokenIds
from inflight.runtime.triton.encoders.text2text import Text2Text
from inflight.runtime.triton.encoders.transcribe import Transcribe
from inflight.runtime.triton.inputs import Inputs, check_parameter_names, parameters_json
from inflight.runtime.triton.metrics import create_metrics_sink
from inflight.runtime.triton.model_parameters import parameters, positive
from inflight.runtime.triton.request_metadata import ClientVersions, metadata_from
from inflight.runtime.triton.round_robin import RoundRobinExecutor
from inflight.runtime.triton.stub.guard_launcher import end_with_server
from inflight.runtime.triton.tensors import as_request_error, error_response
from inflight.text.tokenizer import load_tokenizer, vocabulary_size

_CHARACTERS_PER_CALL = 8192
"""Characters that one call tokenizes at once; the rest is tokenized in another thread, in turn with other requests."""
_CHARACTERS_PER_PIECE = 4096
_CHARACTERS_PER_TEXT = 16
"""A text's fixed cost, as the number of characters whose tokenizing takes as long."""
_MAX_PENDING_BYTES = 512 * 2**20
"""Limit of the bytes of all requests that are being tokenized."""


class EncoderModel:
    """Tokenizes the texts of requests, queues them, and answers each request when all its texts are computed."""

    def initialize(self, args: dict[str, str]) -> None:
        end_with_server()
        bound_strings(pb_utils)
        use_engine_cores()
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        settings = parameters(args)
        self._model = args["model_name"]
        engine_dir = settings["engine_dir"]
        manifest = describe(engine_dir)
        tokenizer = load_tokenizer(engine_dir)
        self._task: Task
        if isinstance(manifest, EncoderDescription):
            self._task = TASKS[manifest.task](manifest)
        elif manifest.text is None:
            self._task = Transcribe(manifest, tokenizer)
        else:
            self._task = Text2Text(manifest, manifest.text, tokenizer)
        from_text = isinstance(self._task, Text2Text)
        self._tokenizer = EncoderTokenizer(
            tokenizer,
            manifest.max_input_len,
            vocabulary_size(tokenizer) if from_text else manifest.vocabulary_size,
            with_types="token_type_ids" in manifest.inputs,
            special=not from_text,
        )
        requests = positive(settings, "num_requests", 1, "infer requests")
        threads = int(settings.get("threads", 0))
        own_budget = settings.get("max_batch_tokens", "0") != "0"
        limits = PlannerLimits(
            (positive(settings, "max_batch_tokens", 1, "tokens") if own_budget else 0)
            or manifest.limits.get("max_batch_tokens")
            or default_batch_tokens(threads, manifest.target),
            positive(settings, "max_batch_texts", 256, "texts"),
            positive(settings, "max_wait_ms", 5000, "milliseconds") / 1000,
        )
        # Triton's isolated stub ignores PYTHONPATH, which engines in processes of their own get.
        sys.path.extend(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
        self._engines = load_engines(engine_dir, manifest, threads, requests, limits, pb_utils.Logger.log_warn)
        self._metrics = EncoderMetrics(
            create_metrics_sink(args, ENCODER_FAMILIES), lambda: self._batcher.waiting_texts, pb_utils.Logger.log_error
        )
        self._batcher = Batcher(
            self._engines,
            limits,
            positive(settings, "max_queue_texts", 16384, "texts"),
            self._metrics.computed,
            pb_utils.Logger.log_error,
            int(settings.get("window_ms", 0)) / 1000,
        )
        self._long_requests = RoundRobinExecutor(_MAX_PENDING_BYTES, pb_utils.Logger.log_error)
        self._client_versions = ClientVersions(pb_utils.Logger.log_warn)
        config = json.loads(args["model_config"])
        self._inputs = [tensor["name"] for tensor in config["input"]]

    def execute(self, requests: list[Any]) -> None:
        """Tokenize short requests and start longer ones. All respond later, through their senders."""
        budget = _CHARACTERS_PER_CALL
        for request in requests:
            sender = request.get_response_sender()
            try:
                texts, deadline = self._read(request)
                requested = frozenset(request.requested_output_names())
                form = AnswerFormat(self._model, texts.outputs, requested, self._task.column)
                self._batcher.reserve(len(texts.texts))
            except Exception as error:
                refused = as_request_error(error, self._model)
                self._metrics.refused(refused.code)
                sender.send(error_response(refused), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                continue
            rows = self._task.empty(len(texts.texts))
            answer = EncoderAnswer(sender, rows, form, self._metrics.ended, deadline)
            budget = self._start(self._queue_texts(texts, answer), answer, budget, texts.characters)

    def finalize(self) -> None:
        self._long_requests.close()
        self._batcher.close()
        for engine in self._engines:
            engine.close()
        self._metrics.close()

    def _read(self, request: Any) -> tuple[TextRequest, int | None]:
        """Return the texts, and the deadline in nanoseconds of the monotonic clock."""
        request_parameters = json.loads(parameters_json(request))
        check_parameter_names(request_parameters, inputs=self._inputs)
        self._client_versions.check(metadata_from(request_parameters))
        inputs = Inputs(request)
        return self._task.read(inputs), deadline_from(inputs.common("deadline_ms"), time.monotonic_ns())

    def _start(self, work: Generator[int, None, None], answer: EncoderAnswer, budget: int, characters: int) -> int:
        """Tokenize a request within the budget of characters, or hand it to the other thread; return what is left."""
        for cost in work:
            if cost > budget:
                try:
                    self._long_requests.submit(work, 4 * characters)
                except RequestError as error:
                    work.close()
                    self._metrics.refused(error.code)
                    answer.fail(error)
                return budget
            budget -= cost
        return budget

    def _queue_texts(self, request: TextRequest, answer: EncoderAnswer) -> Generator[int, None, None]:
        """Tokenize a request's texts in pieces and queue them; yields the characters of each next piece."""
        left = len(request.texts)
        try:
            for first, last, cost in _pieces(request):
                yield cost
                if answer.end_if_cancelled():
                    return
                if request.query is not None and not first:
                    self._tokenizer.check_query(request.query)
                queued, priorities = [], []
                for index, text in enumerate(self._tokenized(request.texts[first:last]), first):
                    if isinstance(text, RequestError):
                        self._metrics.refused(text.code)
                        answer.deliver(index, None, text)
                    else:
                        ready = text if isinstance(text, Clip) else request.ready(index, text.input)
                        answer.describe(index, ready.size, not isinstance(text, Clip) and text.truncated)
                        queued.append((index, ready))
                        priorities.append(request.priorities[index])
                if answer.ended:  # by a text that was refused
                    return
                left -= len(queued)
                self._batcher.add(answer, queued, priorities)
        except Exception as error:
            failure = as_request_error(error, self._model)
            self._metrics.refused(failure.code)
            answer.fail(failure)
        finally:
            self._batcher.release(left)

    def _tokenized(
        self, texts: list[PlainText | TokenIds | Clip | RequestError]
    ) -> list[TokenizedText | Clip | RequestError]:
        plain = iter(self._tokenizer.tokenize([text for text in texts if isinstance(text, PlainText)]))
        return [next(plain) if isinstance(text, PlainText) else self._checked_ids(text) for text in texts]

    def _checked_ids(self, text: TokenIds | Clip | RequestError) -> TokenizedText | Clip | RequestError:
        if not isinstance(text, TokenIds):
            return text
        try:
            return self._tokenizer.check_ids(text.ids, text.truncate)
        except RequestError as error:
            return error


def _pieces(request: TextRequest) -> Iterator[tuple[int, int, int]]:
    """Yield the first and last (exclusive) index of the texts of each piece, and its characters."""
    first, cost = 0, 0
    for index, text in enumerate(request.texts):
        cost += _CHARACTERS_PER_TEXT + (text.characters if isinstance(text, PlainText) else 0)
        if cost >= _CHARACTERS_PER_PIECE or index == len(request.texts) - 1:
            yield first, index + 1, cost
            first, cost = index + 1, 0
