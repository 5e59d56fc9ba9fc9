"""The handlers of requests that a model answers: which server takes each, and whether there is room for it."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from inflight_client.audio.clip_call import SpeechTask
from inflight_client.encoder_call import Task
from inflight_client.model_defaults import with_model_defaults
from inflight_client.sampling import Sampling

from inflight.gateway.admission_queue import Admissions
from inflight.gateway.audit.line import prompt_of
from inflight.gateway.backends import BackendServer
from inflight.gateway.checks.checks import Checks
from inflight.gateway.checks.gate import ChoiceGate
from inflight.gateway.degradation import Degradation
from inflight.gateway.encoding import MAX_TEXTS_IN_FLIGHT, Encoding
from inflight.gateway.generation import CallContext, Generation
from inflight.gateway.http import MAX_VALUES, DisconnectedError, Request, Response
from inflight.gateway.key_ring import Caller
from inflight.gateway.metrics import GatewayMetrics
from inflight.gateway.outcome import Outcome
from inflight.gateway.proxy import Passed, Proxy, honoured
from inflight.gateway.quotas import KeyQuotas
from inflight.gateway.response_cache.answers import CachedAnswers
from inflight.gateway.response_cache.request_key import request_key
from inflight.gateway.routes_file import Shadow
from inflight.gateway.server_pool import Candidate, ServerPool
from inflight.gateway.servers import Encoder, UpstreamServer
from inflight.gateway.settings import GatewaySettings
from inflight.gateway.shadow import Shadows
from inflight.gateway.tokenize import detokenize, tokenize
from inflight.gateway.transcribing import AudioUploads, Transcribing
from inflight.gateway.work import Attempt, Held, in_turn, run_work
from inflight.openai_api.encoding_request import PATHS, EncodingRequest, parse_encoding
from inflight.openai_api.errors import shutting_down
from inflight.openai_api.request import COMPLETION_TOKENS, GenerationRequest, RequestDefaults, parse_request
from inflight.openai_api.responses import parse_as_chat
from inflight.openai_api.transcription_request import AUDIO_PATHS, TranscriptionRequest

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_MAX_TOKEN_IDS = 1_000_000
"""Values of a body that may have token ids."""
_TEXTS_AT_A_TIME = 4
_DEFAULTS = RequestDefaults(None, Sampling())
"""The model's own come later, once it is known which one answers."""
_Parsed = tuple[GenerationRequest, Mapping[str, Any], Mapping[str, Any] | None]
"""A request, its body for chat completions or completions, and what an answer of the Responses API repeats."""
Handler = Callable[..., Awaitable[None]]
"""Takes a request, its caller, and the values of the placeholders of its route."""


class ModelRequests:
    """The handlers of one process by their routes."""

    def __init__(
        self,
        settings: GatewaySettings,
        pool: ServerPool,
        quotas: KeyQuotas,
        metrics: GatewayMetrics,
        on_copy: Callable[[str, Request, Caller], None],
    ) -> None:
        """`on_copy` is called for each copy of a request to a shadow that has ended."""
        self._settings, self._pool, self._quotas, self._metrics = settings, pool, quotas, metrics
        self._admissions = Admissions(pool.places, pool.running, settings.max_waiting, settings.workers)
        self._text_admission = self._admissions.new(lambda: _TEXTS_AT_A_TIME, "texts to tokenize")
        self._degradation = Degradation(pool, metrics, partial(self._admissions.of, "generate"))
        self._uploads = AudioUploads(settings)
        self._checks = Checks(pool.routes.checks, metrics.checks, partial(pool.encoder, "classify"))
        self._cached = CachedAnswers(settings, quotas)
        self._shadows = Shadows(metrics.shadows, metrics.waiting, on_copy)
        self.draining = False
        self.routes: dict[str, dict[str, Handler]] = {
            "/v1/chat/completions": {"POST": partial(self._complete, True)},
            "/v1/completions": {"POST": partial(self._complete, False)},
            "/v1/responses": {"POST": self._create_response},
            **{path: {"POST": partial(self._encode, task)} for task, paths in PATHS.items() for path in paths},
            **{path: {"POST": partial(self._transcribe, speech)} for speech, path in AUDIO_PATHS.items()},
            "/tokenize": {"POST": partial(self._convert_text, tokenize)},
            "/detokenize": {"POST": partial(self._convert_text, detokenize)},
            "/v1/moderations": {"POST": partial(self._convert_text, self._checks.moderate)},
        }

    async def close(self) -> None:
        await self._shadows.close()
        self._cached.close()
        await self._checks.close()

    async def _complete(self, chat: bool, request: Request, caller: Caller) -> None:
        most = MAX_VALUES if chat else _MAX_TOKEN_IDS
        await self._generate(request, caller, lambda body: (parse_request(body, chat, _DEFAULTS), body, None), most)

    async def _create_response(self, request: Request, caller: Caller) -> None:
        await self._generate(request, caller, lambda body: parse_as_chat(body, _DEFAULTS), MAX_VALUES)

    async def _generate(
        self, request: Request, caller: Caller, parse: Callable[[Any], _Parsed], most_values: int
    ) -> None:
        """Answer a request that `parse` understands."""
        sent, (parsed, body, responses) = await request.json(lambda sent: (sent, parse(sent)), most_values)
        request.outcome.tier = parsed.service_tier
        until = time.monotonic() + request.timeout(self._settings.request_timeout)
        self._begin(request, caller, parsed.model, parsed.no_effect)
        caller.check_priority(parsed.priority, "service_tier")
        if self._checks.stage("before", parsed.model) is not None:
            with self._quotas.hold(caller.key, parsed.estimated_tokens, 0, Outcome()):  # or refuse it unchecked
                checked = await self._checks.before(sent, parsed.model, request.outcome)
            if checked is not sent:
                parsed, body, responses = parse(checked)
        self._note_prompt(request, body)
        traceparent = request.headers.get("traceparent", "")
        if request.span is not None:
            request.span.describe(parsed.model, parsed.max_tokens)
            traceparent = request.span.traceparent or traceparent
        context = CallContext(
            f"{request.request_id}-{secrets.token_hex(4)}",
            caller.tenant,
            traceparent if _TRACEPARENT.fullmatch(traceparent) else "",
            until,
            caller.key is not None and caller.key.quotas.counts_tokens,
        )
        find = partial(self._pool.candidates, "generate", visible=caller.visible, request_id=request.request_id)
        again = partial(find, parsed.model, tier=parsed.service_tier, unloaded=True)
        asked = again()[:2]
        route = self._pool.routes.current.get(parsed.model)

        async def compute(request: Request) -> None:
            left, targets = self._degradation.apply(parsed, asked, request, caller)
            after = again if targets is asked else partial(find, targets[0].model)
            attempts = (
                self._held(
                    partial(self._generation, each, left, body, context, request, responses), request, each, left, until
                )
                for each in in_turn(targets[0], after)
            )
            shadow = route.shadow_of(request.request_id) if route else None
            request.kept = bytearray() if shadow else None
            await self._run(attempts, request, caller, until)
            if shadow is not None:
                self._shadow(shadow, request, caller, left, body, context)

        if not (caller.key and caller.key.cache) and not (route and route.cache):
            await compute(request)
            return
        effective = self._effective(asked[0], parsed, request)
        routes = self._pool.routes
        key = partial(request_key, asked[0], effective, responses, caller.tenant, self._settings, routes)
        await self._cached.answer(request, caller, key, asked[0].target, until, compute)

    def _effective(self, candidate: Candidate, parsed: GenerationRequest, request: Request) -> GenerationRequest:
        """Return a request with the defaults of a target's model, and the number of its adapter."""
        server, model = candidate.target, candidate.model
        if not isinstance(server, UpstreamServer):
            return parsed
        if "reasoning_effort" in parsed.chat_template_kwargs and "reasoning_effort" not in server.text.template:
            self._note_no_effect(request, (*parsed.no_effect, "reasoning_effort"))
        sampling = with_model_defaults(parsed.sampling, server.served)
        adapter = None if model == server.model else server.adapters.get(model)
        return replace(parsed, sampling=replace(sampling, adapter=adapter))

    def _shadow(
        self,
        shadow: Shadow,
        request: Request,
        caller: Caller,
        parsed: GenerationRequest,
        body: Mapping[str, Any],
        context: CallContext,
    ) -> None:
        """Copy a request to a shadow target, where it comes after all others."""
        timeout = self._settings.request_timeout
        context = replace(context, request_id=f"{context.request_id}-shadow", until=time.monotonic() + timeout)
        parsed = replace(parsed, stream=False, include_usage=False, priority=-1, service_tier=None)

        def begin(copy: Request) -> Attempt | None:
            candidates = self._pool.at("generate", shadow.model, shadow.server)
            if not candidates:
                return None
            attempt = self._generation(candidates[0], parsed, body, context, copy, None)
            admission = attempt.admission
            is_busy = admission.waiting or 2 * (admission.in_flight + attempt.places) > admission.limit
            return None if is_busy else attempt

        body = {name: value for name, value in body.items() if name != "service_tier"}
        self._shadows.copy(request, caller, body, self._pool.routes.located(shadow.file), context.until, begin)

    def _generation(
        self,
        candidate: Candidate,
        parsed: GenerationRequest,
        body: Mapping[str, Any],
        context: CallContext,
        request: Request,
        responses: Mapping[str, Any] | None,
    ) -> Attempt:
        """Return the generation of an answer at a target. Raises ApiError for what that can't do."""
        server = candidate.target
        if isinstance(server, BackendServer):
            return self._passed_generation(candidate, server, parsed, body, context, request, responses)
        assert isinstance(server, UpstreamServer)
        parsed = self._effective(candidate, parsed, request)
        if responses is not None:
            used = {name: getattr(parsed.sampling, name) for name in ("temperature", "top_p")}
            responses = {**responses, **{name: 1.0 if value is None else value for name, value in used.items()}}
        for prompt in parsed.prompts:
            size = len(prompt) if isinstance(prompt, str) else parsed.characters
            server.text.check_size(prompt, size, server.max_seq_len)
        gate = self._gate(parsed, request)
        generation = Generation(parsed, server, context, self._settings, request.outcome, responses, gate)
        return self._answer(candidate, server.model, parsed, generation.max_tokens, generation.respond)

    def _passed_generation(
        self,
        candidate: Candidate,
        server: BackendServer,
        parsed: GenerationRequest,
        body: Mapping[str, Any],
        context: CallContext,
        request: Request,
        responses: Mapping[str, Any] | None,
    ) -> Attempt:
        """Return what passes the request on. Raises ApiError for what the server can't do."""
        max_tokens = self._max_tokens(parsed)
        left_out = parsed.no_effect if server.has_field("service_tier") else (*parsed.no_effect, "service_tier")
        sent = {"max_tokens": max_tokens, **honoured(body, left_out)}
        passed = Passed(
            "/v1/chat/completions" if parsed.chat else "/v1/completions",
            sent | {name: max_tokens for name in ("max_tokens", "max_completion_tokens") if name in sent},
            parsed.model,
            candidate.model,
            context.request_id,
            context.until,
            parsed.estimated_tokens,
            parsed.stream,
            parsed.include_usage,
            responses=responses,
            keep_alive_seconds=self._settings.keep_alive_seconds,
            choices=parsed.choices,
            gate=self._gate(parsed, request),
        )
        return self._answer(candidate, candidate.model, parsed, max_tokens, Proxy(passed, server).respond)

    def _gate(self, parsed: GenerationRequest, request: Request) -> Callable[[], ChoiceGate | None]:
        """Return what makes the gate of each choice of an answer."""
        return partial(self._checks.gate, parsed.model, request.outcome, parsed.sampling.guide)

    def _answer(
        self,
        candidate: Candidate,
        model: str,
        parsed: GenerationRequest,
        max_tokens: int,
        respond: Callable[[Request], Awaitable[None]],
    ) -> Attempt:
        """Return the attempt of an answer; `model` is that of the server, also for an adapter."""
        return Attempt(
            candidate.target,
            candidate.label,
            self._admissions.of("generate", model, candidate.address),
            self._metrics.in_flight,
            parsed.choices,
            parsed.estimated_tokens,
            max_tokens * parsed.choices,
            respond,
            parsed.priority,
        )

    def _max_tokens(self, parsed: GenerationRequest) -> int:
        default = self._settings.default_max_tokens
        return parsed.max_tokens or (default if parsed.chat else min(default, COMPLETION_TOKENS))

    def _held(
        self,
        build: Callable[[], Attempt],
        request: Request,
        candidate: Candidate,
        parsed: GenerationRequest,
        until: float,
    ) -> Attempt | Held:
        """Return what is built for a target; one that is loaded when requests name it is kept so until the end."""
        target = candidate.target
        if not isinstance(target, UpstreamServer) or not self._pool.is_loaded_for_requests(target):
            return build()
        keep_alive = self._settings.keep_alive_seconds if parsed.stream else None

        async def load() -> Attempt:
            await self._pool.hold(target, request, until, keep_alive)
            return build()

        return Held(parsed.estimated_tokens, self._max_tokens(parsed) * parsed.choices, load)

    async def _encode(self, task: Task, request: Request, caller: Caller) -> None:
        parsed, body = await request.json(lambda body: (parse_encoding(task, body), body), _MAX_TOKEN_IDS)

        def build(candidate: Candidate, model: str, until: float) -> Attempt:
            encoder = candidate.target
            respond: Callable[[Request], Awaitable[None]]
            if isinstance(encoder, BackendServer):
                tokens, sent = parsed.estimated_tokens(None), honoured(body, parsed.no_effect)
                passed = Passed(
                    *(PATHS[task][0], sent, model, candidate.model, request.request_id, until, tokens),
                    texts=parsed.size,
                )
                respond = Proxy(passed, encoder).respond
            else:
                assert isinstance(encoder, Encoder)
                encoding = Encoding(parsed, encoder, until)
                tokens, respond = encoding.estimated_tokens, encoding.respond
            places = min(parsed.size, MAX_TEXTS_IN_FLIGHT)
            return self._encoded(candidate, task, places, tokens, respond, parsed.priority)

        await self._run_at_encoder(task, parsed, body, build, request, caller)

    async def _transcribe(self, speech: SpeechTask, request: Request, caller: Caller) -> None:
        parsed, upload = await self._uploads.read(speech, request)

        def build(candidate: Candidate, model: str, until: float) -> Attempt:
            work = Transcribing(parsed, upload, candidate, until, self._settings.max_audio_seconds)
            tokens = work.estimated_tokens
            return self._encoded(candidate, "transcribe", work.places, tokens, work.respond, parsed.priority)

        await self._run_at_encoder("transcribe", parsed, parsed.options, build, request, caller)

    async def _run_at_encoder(
        self,
        task: Task,
        parsed: EncodingRequest | TranscriptionRequest,
        body: Mapping[str, Any],
        build: Callable[[Candidate, str, float], Attempt],
        request: Request,
        caller: Caller,
    ) -> None:
        """Run what `build` returns for a target, the model's name and a deadline. Raises ApiError."""
        model = parsed.model or self._pool.only_encoder(task, caller.visible)
        self._note_prompt(request, body)
        self._begin(request, caller, model, parsed.no_effect)
        caller.check_priority(parsed.priority, "priority")
        request.outcome.task = task
        if request.span is not None:
            request.span.describe(model, None)
        until = time.monotonic() + request.timeout(self._settings.request_timeout)
        find = partial(self._pool.candidates, task, model, caller.visible, request.request_id)
        attempts = (build(each, model, until) for each in in_turn(find()[0], find))
        await self._run(attempts, request, caller, until)

    def _encoded(
        self,
        candidate: Candidate,
        task: Task,
        places: int,
        tokens: int,
        respond: Callable[[Request], Awaitable[None]],
        priority: int,
    ) -> Attempt:
        admission = self._admissions.of(task, candidate.model, candidate.address)
        in_flight = self._metrics.texts_in_flight.labels(task)
        return Attempt(candidate.target, candidate.label, admission, in_flight, places, tokens, 0, respond, priority)

    def _note_prompt(self, request: Request, body: Mapping[str, Any]) -> None:
        if self._settings.audit is not None and self._settings.audit_prompts:
            request.outcome.prompt = prompt_of(body)

    def _begin(self, request: Request, caller: Caller, model: str, no_effect: Sequence[str]) -> None:
        if self.draining:
            raise shutting_down()
        request.outcome.model = model
        caller.check_model(model)
        self._note_no_effect(request, no_effect)

    def _note_no_effect(self, request: Request, names: Sequence[str]) -> None:
        if names:
            request.response_headers["x-inflight-no-effect"] = ", ".join(names)

    async def _run(self, attempts: Iterator[Attempt | Held], request: Request, caller: Caller, until: float) -> None:
        if not await run_work(attempts, request, caller, until, self._quotas, self._metrics.waiting):
            raise DisconnectedError

    async def _convert_text(self, convert: Callable[..., Awaitable[bytes]], request: Request, caller: Caller) -> None:
        body = await request.json(lambda body: body, _MAX_TOKEN_IDS)
        with self._quotas.hold(caller.key, 0, 0, request.outcome):
            await self._text_admission.enter(1, caller.tenant, self._settings.request_timeout)
            request.outcome.admitted = True
            try:
                converted = await convert(body, self._pool, caller)
            finally:
                self._text_admission.leave(1, None, caller.tenant)
        await request.respond(Response(converted))
