"""The client for asyncio."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from inflight_client._async.connection import AsyncConnection
from inflight_client._async.stream import AsyncStream
from inflight_client._compat.deployment import Deployment
from inflight_client.address import Tls
from inflight_client.call import Call, CallOptions, Prompt, validate_request_id
from inflight_client.deadline import DEFAULT_QUERY_TIMEOUT, Deadline
from inflight_client.result_order import ResultOrder, validate_concurrency
from inflight_client.results import Generation, Health, Model
from inflight_client.retry import Retry, validate_retry
from inflight_client.settings import ClientSettings

if TYPE_CHECKING:
    from inflight_client._async.generate_many import AsyncPrompts
    from inflight_client.chat_template import ChatTemplate
    from inflight_client.metrics import Metrics
    from inflight_client.result_order import Outcome


class AsyncClient:
    """A served model, for asyncio. The tasks of one event loop share it; close it, or use `async with`.

    `address` is HOST:PORT or grpc://HOST:PORT for gRPC, http://HOST:PORT for HTTP, grpcs:// and https:// for TLS.
    Without `model` it takes the one that answers text there. `timeout` holds for all calls that name none. A
    `chat_template` (a checkpoint's directory) is needed for messages where the deployment renders none. Nothing is sent
    before the first call.

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

    async def generate(self, prompt: Prompt, **options: Unpack[CallOptions]) -> Generation:
        """The whole answer to a text or to chat messages. Raises InflightError."""
        return await self._stream(self._settings.call(prompt, options, stream=False)).read()

    def stream(self, prompt: Prompt, **options: Unpack[CallOptions]) -> AsyncStream:
        """The answer as it comes, one delta a step. Leaving the stream early cancels the request on the server.

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
        """The answers to many prompts, `concurrency` at a time, in the order of the prompts.

        With `as_completed` each comes as soon as it is there, as a pair of its prompt's place and the answer. The first
        failure is raised and ends the others; with `return_errors` it takes the answer's place. Prompts are read when
        one can be sent, so they may come from a generator without end, or depend on answers.
        A source that waits must be an asynchronous one.
        What they raise is raised after the answers to those before. Leaving early (by an error, cancelling or
        `contextlib.aclosing`) cancels what is under way; what can't be reached within two seconds ends by itself.

        >>> prompts = ["Tea?", "Coffee?", "Water?"]
        >>> [answer.output_tokens async for answer in client.generate_many(prompts, max_tokens=4)]
        [4, 4, 4]
        """
        from inflight_client._async.generate_many import AsyncPromptRunner, validate_async_prompts

        self._settings.validate_options(options)
        many = AsyncPromptRunner(
            lambda prompt: self._stream(self._settings.call(prompt, options, stream=False)),
            validate_concurrency(concurrency),
        )
        return many.outcomes(validate_async_prompts(prompts), ResultOrder(as_completed, return_errors))

    async def cancel(self, request_id: str, timeout: float = DEFAULT_QUERY_TIMEOUT) -> None:
        """End the requests of that id, whoever sent them; an unknown id is no error.

        Their streams end with finish reason `cancelled` and what was said so far.
        """
        await self._connection.cancel(
            validate_request_id(request_id), Deadline.from_timeout(timeout, "the end of the request")
        )

    async def health(self, timeout: float = DEFAULT_QUERY_TIMEOUT) -> Health:
        """The server's state. A server that does not answer is a state, too, and raises nothing.

        >>> bool(await client.health())
        True
        """
        return await self._connection.health(Deadline.from_timeout(timeout, "the server's health"))

    async def ready(self, timeout: float = DEFAULT_QUERY_TIMEOUT) -> bool:
        """Whether a request would be answered."""
        return bool(await self.health(timeout))

    async def models(self, timeout: float = DEFAULT_QUERY_TIMEOUT) -> list[Model]:
        """The models of the server's repository, with their states.

        >>> [model.name for model in await client.models() if model.ready][0]
        'ensemble'
        """
        return await self._connection.models(Deadline.from_timeout(timeout, "the list of models"))

    async def metrics(self, timeout: float = DEFAULT_QUERY_TIMEOUT) -> Metrics:
        """The server's metrics page (`metrics_url`, by default http on port 8002 of its host), read once.

        On the server's own host it is asked for with the client's headers and certificates, but never in plain words
        where the server is asked over TLS: then give an https:// `metrics_url`.
        """
        from inflight_client._async.metrics import async_fetch_metrics

        deadline = Deadline.from_timeout(timeout, "the metrics page")
        return await async_fetch_metrics(self._settings.metrics_url, deadline, self._settings)

    async def deployment(self, timeout: float = DEFAULT_QUERY_TIMEOUT) -> Deployment:
        """What the client talks to: which model, which tensors, which version.

        >>> deployment = await client.deployment()
        >>> deployment.kind, deployment.model
        ('inflight', 'ensemble')
        """
        return await self._connection.find_deployment(Deadline.from_timeout(timeout, "the deployment's description"))

    async def close(self) -> None:
        """Close the connection; calls that are still open end with an error. Twice is fine."""
        await self._connection.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _stream(self, call: Call) -> AsyncStream:
        return AsyncStream(call, self._connection)
