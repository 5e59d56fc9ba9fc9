"""A Triton server behind the client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from inflight_client import NO_RETRY, Address, AsyncClient, InflightError, ModelConfig
from inflight_client.audio.transcription import Transcription
from inflight_client.call import CallOptions, Prompt, TokenIds
from inflight_client.deployments.server_query import REFUSAL_CODES
from inflight_client.encoder_call import MODELS
from inflight_client.encodings import Classifications, Embeddings, Translations
from inflight_client.engine_load import EngineLoad
from inflight_client.model_defaults import as_conversation, with_model_defaults
from inflight_client.results import Delta
from inflight_client.validation import shorten

from inflight.batch.dispatch.backend import ServerLoad
from inflight.batch.dispatch.choices import ModelTemplate, complete, row_parsers
from inflight.batch.dispatch.scoring import PromptToken, check_scores, score
from inflight.batch.dispatch.transcriber import BlockStore, transcribe
from inflight.batch.job.rows import (
    ClassifyRequest,
    EmbedRequest,
    GenerateRequest,
    RerankRequest,
    RowAnswer,
    RowRequest,
    ScoreRequest,
    TranscribeRequest,
    TranslateRequest,
)
from inflight.batch.job.spec import RunOptions, Task, fingerprint
from inflight.batch.storage.secret_address import masked

_METRICS = ",metrics="
_METRICS_TIMEOUT = 5.0


def split_address(address: str) -> tuple[str, str | None]:
    """Split an address into the server's address and the URL of its metrics, if given.

    >>> split_address("10.0.0.7:8001,metrics=http://10.0.0.7:9002/metrics")
    ('10.0.0.7:8001', 'http://10.0.0.7:9002/metrics')
    >>> split_address("10.0.0.7:8001")
    ('10.0.0.7:8001', None)
    """
    server, separator, page = address.partition(_METRICS)
    return server, page if separator else None


class TritonBackend:
    """`address` is the client's (HOST:PORT, or a URL), with `,metrics=URL` appended if the metrics are not on port
    8002."""

    def __init__(
        self,
        address: str,
        options: RunOptions,
        on_message: Callable[[str], None] = lambda sentence: None,
        task: Task = "generate",
        blocks: BlockStore | None = None,
    ) -> None:
        server, page = split_address(address)
        self.name = masked(server)
        self._encoder = None if task == "generate" or task == "score" else options.model or MODELS[task]
        """The name of the model on the server, of tasks that are not its generator's."""
        self._unchecked = task == "score"
        """Whether it must be seen yet that the server can score."""
        self._client = AsyncClient(
            server,
            options.model if Address.parse(server).openai else options.model or self._encoder,
            headers=options.headers,
            timeout=None if task == "transcribe" else options.row_timeout,  # else each block's
            retry=NO_RETRY,
            metrics_url=page,
        )
        self._priority, self._row_timeout = options.priority or 0, options.row_timeout
        self._takes_priority = True
        self._blocks = blocks
        self._on_message = on_message
        self._warned_metrics = self._warned_model = False
        self._sent_messages: set[str] = set()

    async def send(self, requests: Sequence[RowRequest], request_id: str) -> Sequence[RowAnswer | InflightError]:
        """Send one request, which is several of the client if its texts are many."""
        first = requests[0]
        if first.model is not None and not self._warned_model:
            await self._warn_other_model(first.model)
        if isinstance(first, GenerateRequest):
            return [await self._generate(first, request_id)]
        if isinstance(first, EmbedRequest):
            return await self._embed(first, [request for request in requests if isinstance(request, EmbedRequest)])
        if isinstance(first, ScoreRequest):
            return [await score(first, self)]
        if isinstance(first, TranscribeRequest):
            return [await self._transcribe(first)]
        if isinstance(first, TranslateRequest):
            return await self._translate([request for request in requests if isinstance(request, TranslateRequest)])
        if isinstance(first, ClassifyRequest):
            return await self._classify([request for request in requests if isinstance(request, ClassifyRequest)])
        return [
            await self._client.rerank(
                request.query, request.documents, truncate=request.truncate, priority=self._priority
            )
            for request in requests
            if isinstance(request, RerankRequest)
        ]

    async def _generate(self, request: GenerateRequest, request_id: str) -> RowAnswer:
        """Request one unary response, which is less work for both sides. An answer that was cancelled elsewhere is an
        error."""
        prompt, options = await self._call(request, request_id)
        parsers = None
        if request.chat:
            directory = (await self._client.deployment()).served.get("engine_dir")
            parsers = row_parsers(request, prompt, ModelTemplate.load(str(directory)) if directory else None)
        if request.n > 1 or (parsers is not None and parsers.parser() is not None):
            return await complete(self._client, prompt, request, options, parsers)
        answer = await self._client.generate(prompt, **options)
        if answer.finish_reason == "cancelled":
            raise InflightError("another client cancelled the request on the server", "cancelled")
        return answer

    async def deltas(self, request: GenerateRequest, request_id: str) -> AsyncIterator[Delta]:
        """Yield the answer to a request as it comes, with the log probabilities of its likeliest tokens."""
        prompt, options = await self._call(request, request_id)
        options = {**options, "return_log_probs": True, "top_log_probs": 2, "return_token_ids": True}
        async with self._client.stream(prompt, **options) as stream:
            async for delta in stream:
                yield delta

    async def _call(self, request: GenerateRequest, request_id: str) -> tuple[Prompt, CallOptions]:
        """Return the prompt and the options of a request, as this server's model takes them."""
        prompt, sampling = request.prompt, request.sampling
        if request.as_model:
            served = (await self._client.deployment()).served
            sampling = with_model_defaults(sampling, served)
            if request.as_chat and isinstance(prompt, str):
                prompt = as_conversation(prompt, served)
                if isinstance(prompt, str):
                    self._message_once(
                        f"{self.name} names no chat template, so prompts are sent as texts (--chat changes that)."
                    )
        options: CallOptions = {
            **request.options,
            "max_tokens": request.max_tokens,
            "sampling": sampling,
            "request_id": request_id,
        }
        if self._priority and await self._supports_priority():
            options["priority"] = self._priority
        if request.wants_scores:
            options["return_log_probs"] = True
        return prompt, options

    async def _embed(
        self, shared: EmbedRequest, requests: Sequence[EmbedRequest]
    ) -> Sequence[RowAnswer | InflightError]:
        embeddings = await self._client.embed(
            [text for request in requests for text in request.texts],
            input_type=shared.input_type,
            dimensions=shared.dimensions,
            truncate=shared.truncate,
            priority=self._priority,
            return_errors=True,
        )
        answers: list[RowAnswer | InflightError] = []
        end = 0
        for request in requests:
            start, end = end, end + len(request.texts)
            error = next((embeddings.errors[place] for place in range(start, end) if place in embeddings.errors), None)
            tokens, cut = embeddings.input_tokens[start:end], embeddings.truncated[start:end]
            answers.append(error or Embeddings(embeddings.vectors[start:end], input_tokens=tokens, truncated=cut))
        return answers

    async def _classify(self, requests: Sequence[ClassifyRequest]) -> Sequence[RowAnswer | InflightError]:
        classes = await self._client.classify(
            [request.text for request in requests],
            truncate=requests[0].truncate,
            priority=self._priority,
            return_errors=True,
        )
        return [
            classes.errors.get(place) or Classifications((result,), input_tokens=(tokens,), truncated=(cut,))
            for place, (result, tokens, cut) in enumerate(
                zip(classes.results, classes.input_tokens, classes.truncated, strict=True)
            )
        ]

    async def _translate(self, requests: Sequence[TranslateRequest]) -> Sequence[RowAnswer | InflightError]:
        found = await self._client.translate(
            [request.text for request in requests],
            **requests[0].options,
            priority=self._priority,
            return_errors=True,
        )
        return [
            found.errors.get(place)
            or Translations((text,), (written,), (reason,), input_tokens=(tokens,), truncated=(cut,))
            for place, (text, written, reason, tokens, cut) in enumerate(
                zip(found, found.output_tokens, found.finish_reasons, found.input_tokens, found.truncated, strict=True)
            )
        ]

    async def _transcribe(self, request: TranscribeRequest) -> Transcription:
        if request.audio:
            return await transcribe(request, self._client, self._blocks, self._priority, self._row_timeout)
        if not await self.ready():  # the sample of the task
            raise InflightError(f"{self.name} has no model that is ready", "model_not_ready")
        return Transcription("", (), "", 0.0)

    async def tokenize(self, text: str) -> Sequence[int]:
        return await self._client.tokenize(text, self._row_timeout)

    async def max_prompt_tokens(self) -> int | None:
        most = (await self._client.deployment()).served.get("max_seq_len")
        return None if most is None else int(most) - 1  # one is generated

    async def score_prompt(self, ids: Sequence[int]) -> Sequence[PromptToken]:
        options: CallOptions = {"max_tokens": 1, "return_prompt_log_probs": True, "top_log_probs": 1}
        if self._priority and await self._supports_priority():
            options["priority"] = self._priority
        answer = await self._client.generate(TokenIds(tuple(ids)), **options)
        return [
            PromptToken(float(each), token in each.top)
            for token, each in zip(ids, answer.prompt_log_probs or (), strict=False)
        ]

    async def _warn_other_model(self, named: str) -> None:
        """Warn once that rows name another model: their answers repeat that name."""
        if self._encoder is None:
            deployment = await self._client.deployment()
            model, about = deployment.model, deployment.served
        else:
            model, about = self._encoder, (await self._encoder_config(self._encoder)).json_parameter("inflight_served")
        served = about.get("model", model)
        if named not in (served, model) and not self._warned_model:
            self._warned_model = True
            self._on_message(
                f"Warning: rows ask for other models, such as {shorten(named)}; {served!r} at {self.name} answers all"
                " of them, and each answer repeats the name that its row asked for."
            )

    async def _supports_priority(self) -> bool:
        self._takes_priority = (await self._client.deployment()).takes_priority
        if self._takes_priority:
            return True
        self._message_once(
            f"{self.name} does not support priorities: rows compete equally with all other requests there."
        )
        return False

    def _message_once(self, sentence: str) -> None:
        if sentence not in self._sent_messages:
            self._sent_messages.add(sentence)
            self._on_message(sentence)

    async def load(self) -> ServerLoad:
        """Return the load from the metrics page, whose names are TensorRT-LLM's on every deployment.

        Encoders plan batches of what waits, so their capacity is found by trial.
        """
        if self._encoder is not None:
            return ServerLoad()
        try:
            page = await self._client.metrics(_METRICS_TIMEOUT)
        except InflightError as error:
            if not self._warned_metrics:
                self._warned_metrics = True
                self._on_message(
                    f"{self.name}: there is no metrics page ({error}), so the job finds this server's capacity by"
                    f" trial; name the page: --server '{self.name}{_METRICS}http://HOST:PORT/metrics'."
                )
            raise
        load = EngineLoad.from_metrics(page)
        return ServerLoad(load.running, load.waiting, load.capacity)

    async def ready(self) -> bool:
        return await self._client.ready()

    async def build(self) -> str:
        """Return the build name of our own deployments; for others a fingerprint of what they report."""
        if (model := self._encoder) is None:
            if self._unchecked:
                await check_scores(self, self.name)
                self._unchecked = False
            deployment = await self._client.deployment()
            tensors = _tensors(deployment.inputs, deployment.outputs)
            return deployment.build or fingerprint([deployment.kind, deployment.model, deployment.version, *tensors])
        if self._client.address.openai:
            return fingerprint([served.name for served in await self._client.models()])
        if build := (await self._encoder_config(model)).parameter("inflight_build"):
            return build
        metadata = await self._client.model_metadata(model)
        return fingerprint([model, *_tensors(metadata.inputs, metadata.outputs)])

    async def _encoder_config(self, model: str) -> ModelConfig:
        """Return the encoder's configuration; an empty one if access is restricted."""
        try:
            return await self._client.model_config(model)
        except InflightError as error:
            if error.code not in REFUSAL_CODES or error.code == "model_not_found":
                raise
            return ModelConfig()

    def prioritize(self, priority: int) -> bool:
        self._priority = priority
        return self._takes_priority

    async def close(self) -> None:
        await self._client.close()


def _tensors(*sides: Mapping[str, tuple[str, tuple[int, ...]]]) -> list[dict[str, list[Any]]]:
    return [{name: [datatype, list(shape)] for name, (datatype, shape) in tensors.items()} for tensors in sides]
