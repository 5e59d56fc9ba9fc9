"""The handlers of requests that a model answers: which server takes each, and whether there is room for it."""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeVar

from inflight_client.encoder_call import Task
from inflight_client.model_defaults import with_model_defaults
from inflight_client.sampling import Sampling

from inflight.gateway.admission_queue import Admission
from inflight.gateway.encoding import MAX_TEXTS_IN_FLIGHT, Encoding
from inflight.gateway.generation import CallContext, Generation
from inflight.gateway.http import MAX_VALUES, DisconnectedError, Request, Response
from inflight.gateway.key_ring import Caller
from inflight.gateway.metrics import GatewayMetrics
from inflight.gateway.quotas import KeyQuotas
from inflight.gateway.server_pool import ServerPool
from inflight.gateway.servers import UpstreamServer
from inflight.gateway.settings import GatewaySettings
from inflight.gateway.tokenize import detokenize, tokenize
from inflight.gateway.work import Work
from inflight.openai_api.encoding_request import PATHS, EncodingRequest, parse_encoding
from inflight.openai_api.errors import ApiError
from inflight.openai_api.request import GenerationRequest, RequestDefaults, parse_request
from inflight.openai_api.responses import parse_responses

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_MAX_TOKEN_IDS = 1_000_000
"""Values of a body that may have token ids."""
_TEXTS_AT_A_TIME = 4
_DEFAULTS = RequestDefaults(None, Sampling())
"""The model's own come later, once it is known which one answers."""
Wanted = TypeVar("Wanted", GenerationRequest, EncodingRequest)
Handler = Callable[..., Awaitable[None]]
"""Takes a request, its caller, and the values of the placeholders of its route."""


def _in_turn(parsed: Wanted, caller: Caller, field: str) -> Wanted:
    """Only a trusted key's requests may go before those of others."""
    if parsed.priority <= 0 or caller.trusted:
        return parsed
    return replace(parsed, priority=0, no_effect=(*parsed.no_effect, field))


class ModelRequests:
    """The handlers of one process by their routes."""

    def __init__(self, settings: GatewaySettings, pool: ServerPool, quotas: KeyQuotas, metrics: GatewayMetrics) -> None:
        self._settings, self._pool, self._quotas, self._metrics = settings, pool, quotas, metrics
        self._admissions: dict[tuple[Literal["generate"] | Task, str], Admission] = {}
        self._text_admission = self._new_admission(lambda: _TEXTS_AT_A_TIME, "texts to tokenize")
        self.draining = False
        self.routes: dict[str, dict[str, Handler]] = {
            "/v1/chat/completions": {"POST": partial(self._complete, True)},
            "/v1/completions": {"POST": partial(self._complete, False)},
            "/v1/responses": {"POST": self._create_response},
            **{path: {"POST": partial(self._encode, task)} for task, paths in PATHS.items() for path in paths},
            "/tokenize": {"POST": partial(self._convert_text, tokenize)},
            "/detokenize": {"POST": partial(self._convert_text, detokenize)},
        }

    async def _complete(self, chat: bool, request: Request, caller: Caller) -> None:
        most_values = MAX_VALUES if chat else _MAX_TOKEN_IDS
        parsed = await request.json(lambda body: parse_request(body, chat, _DEFAULTS), most_values)
        await self._generate(request, caller, parsed)

    async def _create_response(self, request: Request, caller: Caller) -> None:
        def parse(body: Any) -> tuple[GenerationRequest, Mapping[str, Any]]:
            parsed = parse_responses(body)
            chat = parse_request(parsed.chat, True, _DEFAULTS)
            names = [name.replace("response_format", "text.format") for name in chat.no_effect]
            schemas = [name for name in names if name.startswith(("text.format.", "tools."))]
            return replace(chat, no_effect=(*parsed.no_effect, *schemas)), parsed.repeated

        await self._generate(request, caller, *await request.json(parse))

    async def _generate(
        self, request: Request, caller: Caller, parsed: GenerationRequest, responses: Mapping[str, Any] | None = None
    ) -> None:
        parsed = _in_turn(parsed, caller, "service_tier")
        self._begin(request, caller, parsed.model, parsed.no_effect)
        context = CallContext(
            f"{request.request_id}-{secrets.token_hex(4)}",
            caller.tenant,
            request.headers.get("traceparent", ""),
            request.timeout(self._settings.request_timeout),
            caller.key is not None and caller.key.quotas.counts_tokens,
        )
        server = (await self._targets(parsed, caller))[0]
        sampling = with_model_defaults(parsed.sampling, server.served)
        adapter = None if parsed.model == server.model else server.adapters.get(parsed.model)
        parsed = replace(parsed, sampling=replace(sampling, adapter=adapter))
        if responses is not None:
            used = {name: getattr(parsed.sampling, name) for name in ("temperature", "top_p")}
            responses = {**responses, **{name: 1.0 if value is None else value for name, value in used.items()}}
        if request.span is not None:
            request.span.describe(server.model, parsed.max_tokens)
            context = replace(context, traceparent=request.span.traceparent or context.traceparent)
        if not _TRACEPARENT.fullmatch(context.traceparent):
            context = replace(context, traceparent="")
        for prompt in parsed.prompts:
            size = len(prompt) if isinstance(prompt, str) else parsed.characters
            server.text.check_size(prompt, size, server.max_seq_len)
        if "reasoning_effort" in parsed.chat_template_kwargs and "reasoning_effort" not in server.text.template:
            self._note_no_effect(request, (*parsed.no_effect, "reasoning_effort"))
        generation = Generation(parsed, server, context, self._settings, request.outcome, responses)
        work = Work(
            server,
            self._admission("generate", server.model),
            self._metrics.in_flight,
            parsed.choices,
            parsed.estimated_tokens,
            generation.max_tokens * parsed.choices,
            context.timeout or self._settings.request_timeout,
            generation.respond,
        )
        await self._run(work, request, caller)

    async def _encode(self, task: Task, request: Request, caller: Caller) -> None:
        parsed = _in_turn(await request.json(partial(parse_encoding, task), _MAX_TOKEN_IDS), caller, "priority")
        model = parsed.model or self._pool.only_encoder(task, caller.visible)
        self._begin(request, caller, model, parsed.no_effect)
        encoder = self._pool.choose_encoder(task, model, caller.visible)
        request.outcome.task = task
        if request.span is not None:
            request.span.describe(model, None)
        timeout = request.timeout(self._settings.request_timeout)
        encoding = Encoding(parsed, encoder, timeout)
        work = Work(
            encoder,
            self._admission(task, model),
            self._metrics.texts_in_flight.labels(task),
            min(parsed.size, MAX_TEXTS_IN_FLIGHT),
            encoding.estimated_tokens,
            0,
            timeout,
            encoding.respond,
        )
        await self._run(work, request, caller)

    async def _targets(self, parsed: GenerationRequest, caller: Caller) -> Sequence[UpstreamServer]:
        """Return the servers that may answer a request, the one to be asked first. Raises ApiError."""
        return (self._pool.choose(parsed.model, caller.visible),)

    def _begin(self, request: Request, caller: Caller, model: str, no_effect: Sequence[str]) -> None:
        if self.draining:
            raise ApiError(
                "the gateway is shutting down; send the request again",
                "model_not_ready",
                status=503,
                headers={"retry-after": "1", "connection": "close"},
            )
        request.outcome.model = model
        caller.check_model(model)
        self._note_no_effect(request, no_effect)

    def _note_no_effect(self, request: Request, names: Sequence[str]) -> None:
        if names:
            request.response_headers["x-inflight-no-effect"] = ", ".join(names)

    def _admission(self, task: Literal["generate"] | Task, model: str) -> Admission:
        """Return the admission of a served model: many requests for one hold up none for another."""
        if (task, model) not in self._admissions:
            what = "answers" if task == "generate" else "texts"
            self._admissions[task, model] = self._new_admission(lambda: self._pool.places(task, model), what)
        return self._admissions[task, model]

    def _new_admission(self, places: Callable[[], int], what: str) -> Admission:
        """Return an admission of this process, which has its share of the places."""
        workers = self._settings.workers
        return Admission(lambda: max(1, places() // workers), self._settings.max_waiting // workers, what)

    async def _run(self, work: Work, request: Request, caller: Caller) -> None:
        if not await work.run(request, caller, self._quotas, self._metrics.waiting):
            raise DisconnectedError

    async def _convert_text(self, convert: Callable[..., Awaitable[bytes]], request: Request, caller: Caller) -> None:
        body = await request.json(lambda body: body, _MAX_TOKEN_IDS)
        with self._quotas.hold(caller.key, 0, 0, request.outcome):
            await self._text_admission.enter(1, caller.tenant, self._settings.request_timeout)
            request.outcome.admitted = True
            try:
                converted = await convert(body, self._pool, caller)
            finally:
                self._text_admission.leave(1, None)
        await request.respond(Response(converted))
