"""The client for asyncio."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from inflight_client._async.connection import AsyncConnection
from inflight_client._async.stream import AsyncStream
from inflight_client.address import Address, Tls
from inflight_client.call import Call, CallOptions, Prompt, TokenIds, validate_request_id
from inflight_client.deadline import DEFAULT_QUERY_TIMEOUT, Deadline
from inflight_client.deployments.deployment import Deployment
from inflight_client.deployments.encoder_detection import EncoderDeployment
from inflight_client.deployments.model_config import ModelConfig
from inflight_client.encoder_call import EncoderCallOptions, Task
from inflight_client.encodings import Classifications, Embeddings, Reranking, Translations
from inflight_client.result_order import ResultOrder, validate_source
from inflight_client.results import Generation, Health, Model
from inflight_client.retry import Retry, validate_retry
from inflight_client.settings import ClientSettings
from inflight_client.transport import ModelMetadata, ServerMetadata
from inflight_client.validation import check_int

if TYPE_CHECKING:
    from inflight_client._async.concurrent_calls import AsyncPrompts
    from inflight_client.audio.clip_call import TranscribeOptions
    from inflight_client.audio.decode import Audio
    from inflight_client.audio.transcription import TranscribedBlock, Transcription
    from inflight_client.chat_template import ChatTemplate
    from inflight_client.encoder_texts import AsyncDocuments, AsyncTexts
    from inflight_client.metrics import Metrics
    from inflight_client.result_order import Outcome


class AsyncClient:
    """A client of one model, for asyncio. The tasks of one event loop share it; close it, or use `async with`.

    `address` is HOST:PORT or grpc://HOST:PORT for gRPC, http://HOST:PORT for HTTP, grpcs:// and https:// for TLS;
    http://HOST:PORT/v1 for an OpenAI-compatible gateway, openai+http://HOST:PORT/v1?model=NAME for another such server.
    Without `model` it uses the server's model for text. `timeout` is the default of all calls. A
    `chat_template` (a checkpoint's directory) is needed for messages if the deployment does not render them. Nothing is
    sent before the first call.

    >>> async with AsyncClient(address) as client:
    ...     answer = await client.generate("Tell me about tea.", max_tokens=8)
    >>> answer.finish_reason, answer.usage.output_tokens
    ('length', 8)
    """

    def __init__(
        self,
        address: str = "127.0.0.1:8001",
        model: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        tls: Tls | None = None,
        timeout: float | None = None,
        retry: Retry | None = None,
        chat_template: ChatTemplate | str | Path | None = None,
        metrics_url: str | None = None,
    ) -> None:
        self._settings = ClientSettings.from_arguments(
            address, model, headers, tls, timeout, chat_template, metrics_url
        )
        self._connection = AsyncConnection(self._settings, validate_retry(retry))

    async def generate(self, prompt: Prompt | TokenIds, **options: Unpack[CallOptions]) -> Generation:
        """Return the whole answer to a text or to chat messages. Raises InflightError."""
        return await self._stream(self._settings.call(prompt, options, stream=False)).read()

    def stream(self, prompt: Prompt | TokenIds, **options: Unpack[CallOptions]) -> AsyncStream:
        """Stream the answer, one delta for each response. Closing the stream early cancels the request on the server.

        >>> async with client.stream([{"role": "user", "content": "Is there tea?"}], max_tokens=8) as stream:
        ...     text = "".join([delta.text async for delta in stream])
        >>> stream.generation.text == text
        True
        """
        return self._stream(self._settings.call(prompt, options, stream=True))

    @overload
    def generate_many(
        self,
        prompts: AsyncPrompts,
        *,
        concurrency: int = 32,
        as_completed: Literal[False] = False,
        return_errors: Literal[False] = False,
        **options: Unpack[CallOptions],
    ) -> AsyncGenerator[Generation, None]: ...
    @overload
    def generate_many(
        self,
        prompts: AsyncPrompts,
        *,
        concurrency: int = 32,
        as_completed: Literal[False] = False,
        return_errors: Literal[True],
        **options: Unpack[CallOptions],
    ) -> AsyncGenerator[Outcome, None]: ...
    @overload
    def generate_many(
        self,
        prompts: AsyncPrompts,
        *,
        concurrency: int = 32,
        as_completed: Literal[True],
        return_errors: Literal[False] = False,
        **options: Unpack[CallOptions],
    ) -> AsyncGenerator[tuple[int, Generation], None]: ...
    @overload
    def generate_many(
        self,
        prompts: AsyncPrompts,
        *,
        concurrency: int = 32,
        as_completed: Literal[True],
        return_errors: Literal[True],
        **options: Unpack[CallOptions],
    ) -> AsyncGenerator[tuple[int, Outcome], None]: ...
    @overload
    def generate_many(
        self,
        prompts: AsyncPrompts,
        *,
        concurrency: int = 32,
        as_completed: bool = False,
        return_errors: bool = False,
        **options: Unpack[CallOptions],
    ) -> AsyncGenerator[Outcome | tuple[int, Outcome], None]: ...
    def generate_many(
        self,
        prompts: AsyncPrompts,
        *,
        concurrency: int = 32,
        as_completed: bool = False,
        return_errors: bool = False,
        **options: Unpack[CallOptions],
    ) -> AsyncGenerator[Any, None]:
        """Generate answers to many prompts, `concurrency` at a time, in the order of the prompts.

        With `as_completed` each answer is yielded as soon as it is complete, as a pair of the prompt's index and the
        answer. The first error is raised and cancels the others; with `return_errors` errors are yielded in place of
        answers. Prompts are read when they can be sent, so infinite generators work, and may depend on answers.
        A source that waits must be an asynchronous one.
        An exception of the prompts is raised after the answers to the prompts before it. Leaving early (by an error,
        cancelling or `contextlib.aclosing`) cancels requests in flight and waits at most two seconds for them.

        >>> prompts = ["Tea?", "Coffee?", "Water?"]
        >>> [answer.output_tokens async for answer in client.generate_many(prompts, max_tokens=4)]
        [4, 4, 4]
        """
        from inflight_client._async.concurrent_calls import AsyncCallRunner

        self._settings.validate_options(options)
        check_int("concurrency", concurrency, 1, 2**31 - 1)
        many = AsyncCallRunner(
            lambda prompt: self._stream(self._settings.call(prompt, options, stream=False)), concurrency
        )
        expected = "a list or another iterable of prompts"
        # sync: prompts = validate_source("prompts", prompts, expected)
        prompts = validate_source("prompts", prompts, expected, asynchronous=True)
        return many.outcomes(prompts, ResultOrder(as_completed, return_errors))

    async def embed(
        self,
        texts: AsyncTexts,
        *,
        input_type: str | None = None,
        dimensions: int | None = None,
        **options: Unpack[EncoderCallOptions],
    ) -> Embeddings:
        """Return the embeddings of a text, or of any number of texts or lists of token ids. Raises InflightError.

        `input_type` names one of the model's prompts, often `query` or `document`; `dimensions` shortens the vectors.
        Many texts are sent in several requests at a time, and read from an iterable as they can be sent. Leaving early
        (by an error or cancelling) cancels requests in flight.
        """
        embeddings: Embeddings = await self._encode(
            "embed", texts, options, input_type=input_type, dimensions=dimensions
        )
        return embeddings

    async def rerank(
        self,
        query: str,
        documents: AsyncDocuments,
        *,
        top_n: int | None = None,
        **options: Unpack[EncoderCallOptions],
    ) -> Reranking:
        """Return documents by their relevance for the query, the best `top_n` or all. Raises InflightError.

        `truncate` cuts documents, never the query. See `embed`.
        """
        reranking: Reranking = await self._encode("rerank", documents, options, query=query, top_n=top_n)
        return reranking

    async def classify(self, texts: AsyncTexts, **options: Unpack[EncoderCallOptions]) -> Classifications:
        """Return the classes of a text, or of any number of texts or lists of token ids, see `embed`.

        Raises InflightError.
        """
        classifications: Classifications = await self._encode("classify", texts, options)
        return classifications

    async def translate(
        self,
        texts: AsyncDocuments,
        *,
        target_language: str | None = None,
        source_language: str | None = None,
        beam_width: int | None = None,
        length_penalty: float | None = None,
        repetition_penalty: float | None = None,
        max_tokens: int | None = None,
        **options: Unpack[EncoderCallOptions],
    ) -> Translations:
        """Return the translation of a text, or of any number of texts, or what else the model makes of a text, such as
        its summary. Raises InflightError.

        `target_language` is a code that the model knows, or the name of one of its prompts, for models of several
        languages or tasks. `source_language` is the code of the texts' language, for models with a token for it; by
        default that of the model's tokenizer. The other options are the model's own by default. See `embed`.
        """
        translations: Translations = await self._encode(
            "text2text",
            texts,
            options,
            target_language=target_language,
            source_language=source_language,
            beam_width=beam_width,
            length_penalty=length_penalty,
            repetition_penalty=repetition_penalty,
            max_tokens=max_tokens,
        )
        return translations

    async def transcribe(self, audio: Audio, **options: Unpack[TranscribeOptions]) -> Transcription:
        """Return what is said in an audio: wav, flac, ogg or mp3 as a path, bytes or open file, or float32 samples,
        mono at 16,000 Hz. Raises InflightError.

        It is decoded here, and sent in blocks of at most 30 s, several at a time; silence is not sent.
        """
        from inflight_client.audio.transcription import Transcription

        # sync: blocks = list(self.transcribe_blocks(audio, **options))
        blocks = [block async for block in self.transcribe_blocks(audio, **options)]
        return Transcription.join(blocks, options.get("task", "transcribe"), options.get("language"))

    def transcribe_blocks(
        self,
        audio: Audio,
        *,
        known: Mapping[int, TranscribedBlock] | None = None,
        **options: Unpack[TranscribeOptions],
    ) -> AsyncGenerator[TranscribedBlock, None]:
        """Transcribe block by block: each one as soon as it and those before it are complete.

        Together they cover the audio, so that `end` tells how far it is. `known` are blocks by their `index` of a call
        with the same audio and options that did not come to its end; they are not computed again. Leaving early cancels
        requests in flight.
        """
        from inflight_client._async.transcribe import async_transcribe

        return async_transcribe(self._connection, self._settings.clip_options(options), audio, known or {})

    async def tokenize(self, text: str, timeout: float | None = DEFAULT_QUERY_TIMEOUT) -> tuple[int, ...]:
        """Return the token ids of a text, as the deployment tokenizes prompts; it may be longer than the model's
        context. Raises InflightError.

        >>> len(await client.tokenize("Tell me about tea.")) > 1
        True
        """
        return await self._connection.tokenize(text, Deadline.from_timeout(timeout, "the token ids"))

    async def cancel(self, request_id: str, timeout: float = DEFAULT_QUERY_TIMEOUT) -> None:
        """Cancel the requests with this id, from any client; an unknown id is not an error.

        Their streams end with the finish reason `cancelled` and the text so far.
        """
        await self._connection.cancel(
            validate_request_id(request_id), Deadline.from_timeout(timeout, "the end of the request")
        )

    async def health(self, timeout: float = DEFAULT_QUERY_TIMEOUT) -> Health:
        """Return the server's health; a server that does not answer is reported, not raised.

        >>> bool(await client.health())
        True
        """
        return await self._connection.health(Deadline.from_timeout(timeout, "the server's health"))

    async def ready(self, timeout: float = DEFAULT_QUERY_TIMEOUT) -> bool:
        """Return whether the server and the model are ready for requests."""
        return bool(await self.health(timeout))

    async def models(self, timeout: float = DEFAULT_QUERY_TIMEOUT) -> list[Model]:
        """Return the models of the server's repository with their states.

        >>> [model.name for model in await client.models() if model.ready][0]
        'ensemble'
        """
        return await self._connection.models(Deadline.from_timeout(timeout, "the list of models"))

    async def metrics(self, timeout: float = DEFAULT_QUERY_TIMEOUT) -> Metrics:
        """Fetch the server's metrics page (`metrics_url`; by default at its host, the port that it publishes or 8002).

        On the server's own host the request has the client's headers and certificates, but never over plain HTTP if
        the server itself uses TLS: then give an https:// `metrics_url`.
        """
        return await self._connection.metrics(Deadline.from_timeout(timeout, "the metrics page"))

    async def deployment(self, timeout: float = DEFAULT_QUERY_TIMEOUT) -> Deployment:
        """Return the server's deployment: its model, tensors and version.

        >>> deployment = await client.deployment()
        >>> deployment.kind, deployment.model
        ('inflight', 'ensemble')
        """
        return await self._connection.find_deployment(Deadline.from_timeout(timeout, "the deployment's description"))

    async def encoders(self, timeout: float = DEFAULT_QUERY_TIMEOUT) -> tuple[EncoderDeployment, ...]:
        """Return the server's models for other tasks than generating text."""
        return await self._connection.find_encoders(Deadline.from_timeout(timeout, "the list of encoders"))

    async def server(self, timeout: float = DEFAULT_QUERY_TIMEOUT) -> ServerMetadata:
        """Return the server's name and version; of a gateway, `gateway` and its version. Raises InflightError."""
        return await self._connection.transport.server(Deadline.from_timeout(timeout, "the server's version"))

    async def model_metadata(self, model: str, timeout: float = DEFAULT_QUERY_TIMEOUT) -> ModelMetadata:
        """Return a model's inputs and outputs, with their types and shapes; a gateway's models tell none.

        Raises InflightError: `model_not_found` for a name that the server does not know.
        """
        deadline = Deadline.from_timeout(timeout, "the model's description")
        return await self._connection.transport.metadata(model, deadline)

    async def model_config(self, model: str, timeout: float = DEFAULT_QUERY_TIMEOUT) -> ModelConfig:
        """Return a model's configuration; a gateway's models have an empty one.

        Raises InflightError: `model_not_found` for a name that the server does not know, and another code of
        `inflight_client.deployments.server_query.REFUSAL_CODES` if the server restricts access to configurations.
        """
        deadline = Deadline.from_timeout(timeout, "the model's description")
        return ModelConfig(await self._connection.transport.config(model, deadline))

    @property
    def address(self) -> Address:
        """The server's address."""
        return self._settings.address

    def refresh(self) -> None:
        """Detect the deployment again before the next call; otherwise a description is used for a minute."""
        self._connection.invalidate()

    async def close(self) -> None:
        """Close the connection; open calls end with an error. May be called twice."""
        await self._connection.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _stream(self, call: Call) -> AsyncStream:
        return AsyncStream(call, self._connection)

    async def _encode(self, task: Task, texts: Any, options: EncoderCallOptions, **more: Any) -> Any:
        from inflight_client._async.encode import async_encode

        return await async_encode(self._connection, self._settings.encoder_options(task, options, **more), texts)
