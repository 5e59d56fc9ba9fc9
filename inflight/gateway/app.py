"""The ASGI application: finds the route, checks the API key, and turns every failure into an error in OpenAI's form."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar
from urllib.parse import unquote

from inflight_client import InflightError
from inflight_client.encoder_call import Task
from inflight_client.model_defaults import with_model_defaults
from inflight_client.sampling import Sampling

from inflight import __version__
from inflight.gateway.access import Access
from inflight.gateway.adapters import AdapterRequest
from inflight.gateway.admission_queue import Admission
from inflight.gateway.batch_routes import BatchRoutes
from inflight.gateway.encoding import MAX_TEXTS_IN_FLIGHT, Encoding
from inflight.gateway.generation import CallContext, Generation
from inflight.gateway.http import (
    MAX_VALUES,
    BodyMemory,
    DisconnectedError,
    Receive,
    Request,
    Response,
    Scope,
    Send,
    log_request,
)
from inflight.gateway.key_ring import Caller
from inflight.gateway.live import live_figures
from inflight.gateway.metrics import GatewayMetrics
from inflight.gateway.openapi import openapi
from inflight.gateway.pages import PAGES
from inflight.gateway.quotas import KeyQuotas
from inflight.gateway.server_pool import ServedModel, ServerPool
from inflight.gateway.settings import GatewaySettings
from inflight.gateway.spans import Spans
from inflight.gateway.tokenize import detokenize, tokenize
from inflight.gateway.work import Work
from inflight.openai_api.encoding_request import PATHS, EncodingRequest, parse_encoding
from inflight.openai_api.errors import ApiError, error_body
from inflight.openai_api.frames import error_frame
from inflight.openai_api.request import GenerationRequest, RequestDefaults, parse_request
from inflight.openai_api.responses import parse_responses

logger = logging.getLogger("inflight.gateway")

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_TASKS = {path: task for task, paths in PATHS.items() for path in paths}
_MAX_TOKEN_IDS = 1_000_000
"""Values of a body that may have token ids."""
_TEXTS_AT_A_TIME = 4
_BODIES = 16
"""So many bodies of the longest size are held at a time, or more that are shorter."""
Wanted = TypeVar("Wanted", GenerationRequest, EncodingRequest)
_DEFAULTS = RequestDefaults(None, Sampling())
"""The model's own come later, once it is known which one answers."""


def _confuses(path: str, route: str) -> bool:
    """Return whether a client's base URL lacks /v1, or has it or the route twice."""
    return path.endswith(route) or route.endswith(path) or (path.startswith(route) and path.endswith(route[3:]))


def _in_turn(parsed: Wanted, caller: Caller, field: str) -> Wanted:
    """Only a trusted key's requests may go before those of others."""
    if parsed.priority <= 0 or caller.trusted:
        return parsed
    return replace(parsed, priority=0, no_effect=(*parsed.no_effect, field))


Handler = Callable[..., Awaitable[None]]
"""Takes a request, its caller, and the values of the placeholders of its route."""


def _pattern(route: str) -> re.Pattern[str]:
    """Return the pattern of a route: `{name}` is a part of a path, `{name:path}` one or several."""
    return re.compile(re.sub(r"\{\w+(:path)?\}", lambda match: "(.+)" if match[1] else "([^/]+)", route))


class Gateway:
    """One process of the gateway."""

    def __init__(self, settings: GatewaySettings) -> None:
        self.settings = settings
        self.pool = ServerPool(settings)
        self.admission = self._admission(lambda: (settings.max_in_flight or self.pool.places) // settings.workers)
        self._text_admission = self._admission(lambda: _TEXTS_AT_A_TIME, "texts to tokenize")
        self._bodies = BodyMemory(_BODIES * settings.max_body_bytes)
        self._encoder_admissions: dict[tuple[Task, str], Admission] = {}
        self.metrics = GatewayMetrics(lambda: self.pool.ready)
        self.draining = False
        self._spans = Spans(settings.otlp_endpoint) if settings.otlp_endpoint else None
        self._access = Access(settings)
        self._quotas = KeyQuotas(settings.state_path / "quotas.sqlite")
        self._batches = BatchRoutes(
            settings, lambda endpoint: self.pool.for_batches(_TASKS.get(endpoint, "generate")), self._quotas
        )
        self._started = int(time.time())
        self._routes: dict[str, dict[str, Handler]] = {
            **{path: {"GET": partial(self._show, page)} for path, page in PAGES.items()},
            "/live/data": {"GET": self._live},
            "/openapi.json": {"GET": self._openapi},
            "/health": {"GET": partial(self._show, lambda: Response({"status": "ok"}))},
            "/ready": {"GET": self._ready},
            "/version": {"GET": partial(self._show, lambda: Response({"version": __version__}))},
            "/metrics": {"GET": self._metrics_page},
            "/v1/models": {"GET": self._models},
            "/v1/models/{model:path}": {"GET": self._model},
            "/v1/load_lora_adapter": {"POST": self._load_adapter},
            "/v1/unload_lora_adapter": {"POST": self._unload_adapter},
            "/v1/chat/completions": {"POST": partial(self._complete, True)},
            "/v1/completions": {"POST": partial(self._complete, False)},
            "/v1/responses": {"POST": self._create_response},
            **{path: {"POST": partial(self._encode, task)} for task, paths in PATHS.items() for path in paths},
            "/tokenize": {"POST": partial(self._convert_text, tokenize)},
            "/detokenize": {"POST": partial(self._convert_text, detokenize)},
            **self._batches.routes,
        }
        self._patterns = {route: _pattern(route) for route in self._routes if "{" in route}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                # Before the first connection is accepted: another process may already have said that it is ready.
                await self.pool.start()
                await self._batches.start()
                await send({"type": "lifespan.startup.complete"})
            else:
                await self._batches.close()
                self._quotas.close()
                await self.pool.close()
                if self._spans is not None:
                    self._spans.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.monotonic()
        sent_id = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        request_id = sent_id if _REQUEST_ID.fullmatch(sent_id) else f"req_{secrets.token_hex(12)}"
        request = Request(scope, receive, send, request_id, self.settings.max_body_bytes, self._bodies)
        request.response_headers["x-request-id"] = request_id
        if self._spans is not None:
            request.span = self._spans.begin(request.method, request.path, request.headers, request_id)
        caller, route = Caller(), "unknown"
        try:
            self._access.allow_pages(request)
            if request.method == "OPTIONS" and "access-control-allow-origin" in request.response_headers:
                await request.respond(Response(b"", 204))
                return
            caller = self._access.authenticate(request)
            route, handler = self._route(request)
            await handler(request, caller)
        except DisconnectedError:
            self._left(request)
        except ApiError as error:
            await self._fail(request, error)
        except InflightError as error:
            await self._fail(request, ApiError.from_error(error))
        except Exception:
            logger.exception("request %s failed", request_id)
            request.outcome.error = "internal_error"
            body = error_body(
                f"the gateway failed; its log has the request id {request_id}", "internal_error", 500, None
            )
            if request.started:
                await self._cut(request, body)
            else:
                await request.respond(Response(body, 500))
        finally:
            request.close()
            seconds = time.monotonic() - began
            self.metrics.record(route, request.status, caller.tenant, seconds, began, request.outcome)
            if self.settings.log_requests:
                log_request(request, caller.tenant, seconds, began)
            if request.span is not None:
                request.span.end(request.status, request.outcome)

    def _left(self, request: Request) -> None:
        request.status, request.outcome.error, request.outcome.left = 499, "client_left", True

    async def _fail(self, request: Request, error: ApiError) -> None:
        request.outcome.error, request.outcome.param = error.body()["error"]["code"], error.param
        if request.started:
            await self._cut(request, error.body())
        else:
            await request.respond(Response(error.body(), error.status, headers=error.headers))

    async def _cut(self, request: Request, error: Mapping[str, Any]) -> None:
        """End a response that fails midway: a stream of events by an event, another one by closing the connection."""
        if not request.has_events:
            raise ConnectionAbortedError("the response can't be completed")  # uvicorn closes the connection
        await request.end(error_frame(error))  # without [DONE], which would make a cut answer look whole

    def _route(self, request: Request) -> tuple[str, Handler]:
        path = request.path.rstrip("/") or "/"
        values: tuple[str, ...] = ()
        if path not in self._routes:
            for route, pattern in self._patterns.items():
                if match := pattern.fullmatch(path):
                    path, values = route, match.groups()
        methods = self._routes.get(path)
        if methods is None:
            meant = next((route for route in self._routes if route != "/" and _confuses(path, route)), None)
            step = f"did you mean {meant}?" if meant else "see /openapi.json"
            raise ApiError(f"there is no {path[:200]!r} here; {step}", "not_found", status=404)
        method = "GET" if request.method == "HEAD" else request.method
        if method not in methods:
            allowed = ", ".join(methods)
            raise ApiError(f"{path} takes {allowed}", "method_not_allowed", status=405, headers={"allow": allowed})
        handler = methods[method]
        return path, (lambda request, caller: handler(request, caller, *values)) if values else handler

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
        server = self.pool.choose(parsed.model, caller.visible)
        sampling = with_model_defaults(parsed.sampling, server.served)
        adapter = None if parsed.model == server.model else server.adapters.get(parsed.model)
        parsed = replace(parsed, sampling=replace(sampling, adapter=adapter))
        if responses is not None:
            used = {name: getattr(parsed.sampling, name) for name in ("temperature", "top_p")}
            responses = {**responses, **{name: 1.0 if value is None else value for name, value in used.items()}}
        traceparent = request.headers.get("traceparent", "")
        if request.span is not None:
            request.span.describe(server.model, parsed.max_tokens)
            traceparent = request.span.traceparent or traceparent
        context = CallContext(
            f"{request.request_id}-{secrets.token_hex(4)}",
            caller.tenant,
            traceparent if _TRACEPARENT.fullmatch(traceparent) else "",
            request.timeout(self.settings.request_timeout),
            caller.key is not None and caller.key.quotas.counts_tokens,
        )
        for prompt in parsed.prompts:
            size = len(prompt) if isinstance(prompt, str) else parsed.characters
            server.text.check_size(prompt, size, server.max_seq_len)
        if "reasoning_effort" in parsed.chat_template_kwargs and "reasoning_effort" not in server.text.template:
            self._note_no_effect(request, (*parsed.no_effect, "reasoning_effort"))
        generation = Generation(parsed, server, context, self.settings, request.outcome, responses)
        work = Work(
            server,
            self.admission,
            self.metrics.in_flight,
            parsed.choices,
            parsed.estimated_tokens,
            generation.max_tokens * parsed.choices,
            context.timeout or self.settings.request_timeout,
            generation.respond,
        )
        await self._run(work, request, caller)

    async def _encode(self, task: Task, request: Request, caller: Caller) -> None:
        parsed = _in_turn(await request.json(partial(parse_encoding, task), _MAX_TOKEN_IDS), caller, "priority")
        model = parsed.model or self.pool.only_encoder(task, caller.visible)
        self._begin(request, caller, model, parsed.no_effect)
        encoder = self.pool.choose_encoder(task, model, caller.visible)
        request.outcome.task = task
        if request.span is not None:
            request.span.describe(model, None)
        timeout = request.timeout(self.settings.request_timeout)
        encoding = Encoding(parsed, encoder, timeout)
        work = Work(
            encoder,
            self._encoder_admission(task, model),
            self.metrics.texts_in_flight.labels(task),
            min(parsed.size, MAX_TEXTS_IN_FLIGHT),
            encoding.estimated_tokens,
            0,
            timeout,
            encoding.respond,
        )
        await self._run(work, request, caller)

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

    def _encoder_admission(self, task: Task, model: str) -> Admission:
        """Return the admission of a served encoder: many texts for one hold up no other, and no conversation."""
        if (task, model) not in self._encoder_admissions:
            self._encoder_admissions[task, model] = self._admission(
                lambda: self.pool.encoder_places(task, model) // self.settings.workers, "texts"
            )
        return self._encoder_admissions[task, model]

    def _admission(self, places: Callable[[], int], what: str = "answers") -> Admission:
        """Return the admission of this process, which has its share of the places."""
        return Admission(lambda: max(1, places()), self.settings.max_waiting // self.settings.workers, what)

    async def _run(self, work: Work, request: Request, caller: Caller) -> None:
        if not await work.run(request, caller, self._quotas, self.metrics.waiting):
            self._left(request)

    async def _convert_text(self, convert: Callable[..., Awaitable[bytes]], request: Request, caller: Caller) -> None:
        body = await request.json(lambda body: body, _MAX_TOKEN_IDS)
        with self._quotas.hold(caller.key, 0, 0, request.outcome):
            await self._text_admission.enter(1, caller.tenant, self.settings.request_timeout)
            request.outcome.admitted = True
            try:
                converted = await convert(body, self.pool, caller)
            finally:
                self._text_admission.leave(1, None, caller.tenant)
        await request.respond(Response(converted))

    async def _models(self, request: Request, caller: Caller) -> None:
        models = [each.described(self._started) for each in self._visible(caller)]
        await request.respond(Response({"object": "list", "data": models}))

    def _visible(self, caller: Caller) -> list[ServedModel]:
        return [each for each in self.pool.models if caller.visible is None or each.name in caller.visible]

    async def _load_adapter(self, request: Request, caller: Caller) -> None:
        caller.check_trusted("load adapters")
        adapter = await request.json(AdapterRequest.parse)
        taken = {each.name for each in self.pool.models}
        servers = [each.client for each in self.pool.servers if each.ready and each.loads_adapters]
        await self.pool.adapters.load(adapter, taken, servers, self.settings.request_timeout)
        await request.respond(Response(self.pool.ready_model(adapter.name).described(self._started)))

    async def _unload_adapter(self, request: Request, caller: Caller) -> None:
        caller.check_trusted("unload adapters")
        adapter = await request.json(AdapterRequest.parse)
        await self.pool.adapters.unload(adapter.name)
        await request.respond(Response({"id": adapter.name, "object": "model", "deleted": True}))

    async def _model(self, request: Request, caller: Caller, name: str) -> None:
        name = unquote(name)
        caller.check_model(name)
        await request.respond(Response(self.pool.ready_model(name).described(self._started)))

    async def _show(self, page: Callable[[], Response], request: Request, caller: Caller) -> None:
        await request.respond(page())

    async def _openapi(self, request: Request, caller: Caller) -> None:
        names = ((each.name, each.task) for each in self._visible(caller))
        await request.respond(Response(openapi(tuple(names))))

    async def _ready(self, request: Request, caller: Caller) -> None:
        if self.draining or not self.pool.ready:
            raise ApiError("no server is ready", "model_not_ready", status=503, headers={"retry-after": "2"})
        await request.respond(Response({"status": "ready"}))

    async def _live(self, request: Request, caller: Caller) -> None:
        caller.check_trusted("read the metrics")
        await request.respond(Response(await live_figures(self.metrics.page(), self.pool.servers)))

    async def _metrics_page(self, request: Request, caller: Caller) -> None:
        caller.check_trusted("read the metrics, which name every tenant")
        page = self.metrics.page() + await asyncio.to_thread(self.pool.metrics_page)
        await request.respond(Response(page, content_type=self.metrics.content_type))
