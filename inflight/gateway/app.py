"""The ASGI application: finds the route, checks the API key, and turns every failure into an error in OpenAI's form."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import unquote

from inflight_client import InflightError

from inflight import __version__
from inflight.gateway.access import Access
from inflight.gateway.adapters import AdapterRequest
from inflight.gateway.audit.line import line_of
from inflight.gateway.audit.log import UNAVAILABLE, AuditLog
from inflight.gateway.batch_routes import BatchRoutes
from inflight.gateway.http import (
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
from inflight.gateway.model_requests import Handler, ModelRequests
from inflight.gateway.openapi import openapi
from inflight.gateway.pages import PAGES
from inflight.gateway.quotas import KeyQuotas
from inflight.gateway.served_model import ServedModel
from inflight.gateway.server_pool import ServerPool
from inflight.gateway.settings import GatewaySettings
from inflight.gateway.spans import Spans
from inflight.openai_api.encoding_request import PATHS
from inflight.openai_api.errors import ApiError, error_body, shutting_down
from inflight.openai_api.frames import error_frame

logger = logging.getLogger("inflight.gateway")

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_TASKS = {path: task for task, paths in PATHS.items() for path in paths}
_BODIES = 16
"""So many bodies of the longest size are held at a time, or more that are shorter."""


def _confuses(path: str, route: str) -> bool:
    """Return whether a client's base URL lacks /v1, or has it or the route twice."""
    return path.endswith(route) or route.endswith(path) or (path.startswith(route) and path.endswith(route[3:]))


def _pattern(route: str) -> re.Pattern[str]:
    """Return the pattern of a route: `{name}` is a part of a path, `{name:path}` one or several."""
    return re.compile(re.sub(r"\{\w+(:path)?\}", lambda match: "(.+)" if match[1] else "([^/]+)", route))


class Gateway:
    """One process of the gateway."""

    def __init__(self, settings: GatewaySettings) -> None:
        self.settings = settings
        self.pool = ServerPool(settings)
        self._bodies = BodyMemory(_BODIES * settings.max_body_bytes)
        self.metrics = GatewayMetrics(lambda: self.pool.ready)
        self._spans = Spans(settings.otlp_endpoint) if settings.otlp_endpoint else None
        self._access = Access(settings)
        self._audit = AuditLog(settings.audit_options) if settings.audit_options else None
        self._quotas = KeyQuotas(settings.state_path / "quotas.sqlite")
        self._requests = ModelRequests(settings, self.pool, self._quotas, self.metrics, self._write_audit)
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
            **self._requests.routes,
            **self._batches.routes,
        }
        self._patterns = {route: _pattern(route) for route in self._routes if "{" in route}

    def drain(self) -> None:
        """Be not ready, and refuse new requests to models."""
        self._requests.draining = True

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
                await self._requests.close()
                self._quotas.close()
                await self.pool.close()
                if self._audit is not None:
                    await asyncio.to_thread(self._audit.close)
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
            if self._audit is not None and not self._access.is_open(request):
                self._audit.check_room()
            self._access.allow_pages(request)
            if request.method == "OPTIONS" and "access-control-allow-origin" in request.response_headers:
                await request.respond(Response(b"", 204))
                return
            caller = self._access.authenticate(request)
            route, handler = self._route(request)
            await handler(request, caller)
        except DisconnectedError:
            request.status, request.outcome.error, request.outcome.left = 499, "client_left", True
        except ApiError as error:
            await self._fail(request, error)
        except InflightError as error:
            await self._fail(request, ApiError.from_error(error))
        except asyncio.CancelledError:  # by uvicorn, once the time to drain is over
            with suppress(asyncio.CancelledError, TimeoutError, DisconnectedError):
                async with asyncio.timeout(0):  # the logs close now, so a client that does not read isn't waited for
                    await self._fail(request, shutting_down())
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
            if request.outcome.error != UNAVAILABLE and not self._access.is_open(request):
                self._write_audit("request", request, caller, route, seconds)
            if self.settings.log_requests:
                log_request(request, caller.tenant, seconds, began)
            if request.span is not None:
                request.span.end(request.status, request.outcome)

    def _write_audit(
        self, event: str, request: Request, caller: Caller, route: str = "", seconds: float | None = None
    ) -> None:
        """Add the line of a request that has ended to the audit log, if there is one."""
        if self._audit is None:
            return
        line = line_of(event, request, caller, route or request.path, seconds)
        line.route = line.model if line.model in self.pool.routes.current else None
        line.routes_sha256, line.keys_sha256 = self.pool.routes.sha256, self._access.policy
        self._audit.add(line.body())

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
        if self._requests.draining or not self.pool.ready:
            raise ApiError("no server is ready", "model_not_ready", status=503, headers={"retry-after": "2"})
        await request.respond(Response({"status": "ready"}))

    async def _live(self, request: Request, caller: Caller) -> None:
        caller.check_trusted("read the metrics")
        await request.respond(Response(await live_figures(self.metrics.page(), self.pool.servers)))

    async def _metrics_page(self, request: Request, caller: Caller) -> None:
        caller.check_trusted("read the metrics, which name every tenant")
        page = self.metrics.page() + await asyncio.to_thread(self.pool.metrics_page)
        await request.respond(Response(page, content_type=self.metrics.content_type))
