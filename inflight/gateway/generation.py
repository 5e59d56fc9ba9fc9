"""Runs the choices of a request on a server, and writes them as a whole response or as a stream.

Whole responses are streamed from the server too, so that a client that leaves frees its KV blocks at once.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

from inflight_client import AsyncStream, InflightError
from inflight_client.call import CallOptions, CheckedMessages, Prompt, TokenIds
from inflight_client.results import UNKNOWN, Delta

from inflight.gateway.checks.gate import BLOCKED, ChoiceGate
from inflight.gateway.deltas import Deltas, merged
from inflight.gateway.engine_errors import engine_error
from inflight.gateway.http import Request, Response
from inflight.gateway.model_text import EncodedPrompt
from inflight.gateway.outcome import Outcome, TokenCounts
from inflight.gateway.servers import UpstreamServer
from inflight.gateway.settings import GatewaySettings
from inflight.gateway.spans import RequestSpan
from inflight.openai_api.choice_parsers import FORMAT_UNKNOWN, ChoiceParser, ParserChoice
from inflight.openai_api.events import Event, TextDelta
from inflight.openai_api.frames import DONE, KEEP_ALIVE, ChoiceFrames, ChoiceWriter, error_frame, usage_frame
from inflight.openai_api.request import COMPLETION_TOKENS, GenerationRequest
from inflight.openai_api.response import Choice, ResponseHead, finish_reason_of, response_body
from inflight.openai_api.responses import ResponsesWriter
from inflight.openai_api.seeds import choice_seed, is_reproducible
from inflight.openai_api.token_text import NAMELESS_TOKENS, TokenLogprob


@dataclass(frozen=True)
class CallContext:
    """What a request brings besides its body."""

    request_id: str
    tenant: str = ""
    traceparent: str = ""
    until: float = math.inf
    """The moment of the monotonic clock by which the answer must be complete."""
    counts_tokens: bool = False
    """Whether the caller has quotas of tokens."""


class Generation:
    """One request at one server."""

    def __init__(
        self,
        parsed: GenerationRequest,
        server: UpstreamServer,
        context: CallContext,
        settings: GatewaySettings,
        outcome: Outcome,
        responses: Mapping[str, Any] | None = None,
        gate: Callable[[], ChoiceGate | None] = lambda: None,
    ) -> None:
        """`responses`: what the answer repeats, if it is one of the Responses API. `gate`: what each choice passes."""
        self._parsed, self._server, self._context, self._settings = parsed, server, context, settings
        self._parsers = ParserChoice(parsed, server.text.template, settings.tool_call_parser, settings.reasoning_parser)
        self.outcome = outcome
        self._head = ResponseHead(
            secrets.token_hex(12),
            int(time.time()),
            parsed.model,
            parsed.chat,
            server.fingerprint,
            parsed.answered_tier,
        )
        self._responses = None if responses is None else ResponsesWriter(self._head, responses, self._call_id(0))
        self._gates = [gate() for _ in range(parsed.choices)]
        self._counts = TokenCounts(outcome)
        self._limits: list[int] = []
        """The most tokens of an answer to each prompt."""
        self._encoded: list[EncodedPrompt] = []
        """The prompts as token ids, if the gateway has the model's tokenizer."""
        self._word_ids: dict[str, list[int]] = {}
        self._answered: Callable[[], None] = lambda: None
        self._streams: list[AsyncStream] = []
        self._span: RequestSpan | None = None

    async def respond(self, request: Request) -> None:
        """Answer the request. Raises ApiError or InflightError while nothing of the response was sent."""
        if self._parsers.lacks_format:
            request.response_headers |= FORMAT_UNKNOWN
        self._span = request.span if request.span is not None and request.span.recording else None
        self._answered = request.answered
        await self._encode_prompts()
        prompts = self._prompts()
        self._limits = [self._max_tokens(place) for place in range(len(prompts))]
        self.outcome.sent = True
        async with AsyncExitStack() as stack:
            for index in range(self._parsed.choices):
                place = index // self._parsed.n
                options = self._options(index, self._limits[place])
                stream = self._server.generator.stream(prompts[place], **options)
                self._streams.append(await stack.enter_async_context(stream))
            deltas = merged(self._streams)
            stack.push_async_callback(deltas.close)
            try:
                await self._answer(request, deltas)
            except InflightError as error:
                self._server.note_failure(error)
                api_error = engine_error(error, self._parsed, self._server, self._guided)
                if not request.started:
                    raise api_error from None
                self.outcome.error = api_error.body()["error"]["code"]
                failed = self._responses.failed(api_error) if self._responses else error_frame(api_error.body())
                await request.end(failed)

    async def _encode_prompts(self) -> None:
        """Render and tokenize the prompts, outside the event loop, if the gateway has the model's tokenizer."""
        text, kwargs, tags = self._server.text, self._template_kwargs(), self._parsers.tags
        if text.encoder is None or (self._parsed.chat and not text.template and not self._server.speaks_tokens):
            return  # the server renders and tokenizes them
        for prompt in self._parsed.prompts:
            self._encoded.append(await text.encode(prompt, kwargs, max_tokens=self._server.max_seq_len))
        if self._server.speaks_tokens:
            self._word_ids = await text.encode_words((*self._parsed.sampling.stop, *self._parsed.sampling.bad_words))
        self.outcome.prompt_tokens = sum(len(each.ids) for each in self._encoded)
        if tags is not None:
            self._parsers.inside = self._encoded[0].text.rstrip().endswith(tags.start)

    def _prompts(self) -> list[Prompt | TokenIds]:
        """Return the prompts as they are sent: as token ids where the server takes them."""
        if self._server.speaks_tokens:
            return [TokenIds(each.ids) for each in self._encoded]
        several = self._parsed.n > 1
        return [
            CheckedMessages(each) if several and not isinstance(each, str | TokenIds) else each
            for each in self._parsed.prompts
        ]

    @property
    def _guided(self) -> str:
        """The field that says what form the answer must have."""
        return "tools" if self._parsers.must_call else "response_format" if self._responses is None else "text"

    @property
    def _ends_early(self) -> bool:
        """Whether an answer may end before the server says how many tokens it has."""
        return any(self._gates) or (self._parsed.tools.active and not self._parsed.tools.parallel)

    def _echo(self, index: int) -> str:
        """Return the text of a choice's prompt."""
        prompt = self._parsed.prompts[index // self._parsed.n]
        return self._server.text.decode(prompt.ids, True) if isinstance(prompt, TokenIds) else str(prompt)

    @property
    def max_tokens(self) -> int:
        """The most tokens of an answer: the request's limit, or the deployment's default."""
        default = self._settings.default_max_tokens
        return self._parsed.max_tokens or (default if self._parsed.chat else min(default, COMPLETION_TOKENS))

    def _max_tokens(self, place: int) -> int:
        """Return the most tokens of an answer to a prompt: a default is less if the prompt leaves less room."""
        most = self._server.max_seq_len
        if self._parsed.max_tokens is not None or most is None or not self._encoded:
            return self.max_tokens
        return max(1, min(self.max_tokens, most - len(self._encoded[place].ids)))

    def _template_kwargs(self) -> dict[str, Any]:
        kwargs = dict(self._parsed.chat_template_kwargs)
        return kwargs | {"tools": self._parsed.tools.for_template()} if self._parsed.tools.active else kwargs

    def _options(self, index: int, max_tokens: int) -> CallOptions:
        parsed, context = self._parsed, self._context
        sampling = self._parsers.guided(parsed.sampling)
        place, choice = divmod(index, parsed.n)
        seed = choice_seed(parsed.prompts[place], sampling, choice, is_reproducible(self._server.deployment))
        options: CallOptions = {
            "max_tokens": max_tokens,
            "sampling": replace(sampling, seed=seed) if sampling.temperature != 0 else sampling,
            "timeout": max(0.001, context.until - time.monotonic()),
            "request_id": f"{context.request_id}-{index}",
        }
        if parsed.logprobs:
            options["return_log_probs"] = True
        if most := max(parsed.top_logprobs, parsed.prompt_logprobs or 0):
            options["top_log_probs"] = most
        if parsed.scores_prompt:
            options["return_prompt_log_probs"] = True
        counts = self._server.speaks_tokens and not self._is_inflight  # what the server may not report
        if parsed.logprobs or self._ends_early or counts:
            options["return_token_ids"] = True
        if self._server.speaks_tokens:
            options["token_text"] = self._server.text.answer_text(
                self._encoded[place].ids, self._word_ids, self._parsers.kept
            )
        elif parsed.chat and (kwargs := self._template_kwargs()):
            options["chat_template_kwargs"] = kwargs
        if parsed.priority and "priority" in self._inputs:
            options["priority"] = parsed.priority
        if self._span is not None and "return_perf_metrics" in self._inputs:
            options["return_perf_metrics"] = True
        if self._is_inflight:
            options["tenant"], options["traceparent"] = context.tenant, context.traceparent
        return options

    @property
    def _inputs(self) -> Mapping[str, Any]:
        return self._server.deployment.inputs if self._server.deployment else {}

    @property
    def _is_inflight(self) -> bool:
        return self._server.deployment is not None and self._server.deployment.is_inflight

    async def _answer(self, request: Request, deltas: Deltas) -> None:
        """Pass the deltas through parsers to the writers; send the frames of these, or what they have collected."""
        streams = self._parsed.stream
        writers = [self._writer(index) for index in range(self._parsed.choices)]
        parsers = [self._parsers.parser() for _ in writers]
        early = await self._first_deltas(deltas) if streams else []
        if streams and not request.started:  # it is, if the client has waited for the model
            await request.start_stream()
        beat = asyncio.create_task(request.keep_alive(self._settings.keep_alive_seconds)) if streams else None
        try:
            head = b"".join(each.first() for each in writers)
            if self._parsed.echo:
                for index, (writer, gate) in enumerate(zip(writers, self._gates, strict=True)):
                    text = self._echo(index)
                    shown = [TextDelta(text)] if gate is None else await gate.feed_in_thread([TextDelta(text)])
                    head += writer.events(shown, ())
            if streams:
                await request.write(head or KEEP_ALIVE)
            if early:
                frames = [await self._frame(writers[at], parsers[at], at, delta, deltas) for at, delta in early]
                await request.write(b"".join(frames) or KEEP_ALIVE)
            plain = not self._parsed.logprobs and not self._parsed.scores_prompt and not any(parsers)
            async for index, delta in deltas:
                self._note(index, delta)
                if plain and delta.finish_reason is None:
                    gate = self._gates[index]
                    text = delta.text if gate is None or not delta.text else gate.text(delta.text)
                    frame = writers[index].text(text) if text else b""
                    if gate is not None and gate.blocked:
                        frame += await self._frame(writers[index], None, index, delta._replace(text=""), deltas)
                else:
                    frame = await self._frame(writers[index], parsers[index], index, delta, deltas)
                if frame and streams:
                    await request.write(frame)
        finally:
            if beat is not None:
                beat.cancel()
        self._answered()
        usage, responses = self._counts.usage(), self._responses
        if not streams:
            collected = [each for each in writers if isinstance(each, Choice)]
            body = responses.body(usage) if responses else response_body(self._head, collected, usage)
            await request.respond(Response(body))
        elif responses is not None:
            await request.end(responses.last(usage))
        else:
            last = usage_frame(self._head, usage) if self._parsed.include_usage and usage else b""
            await request.end(last + DONE)

    async def _frame(
        self,
        writer: ChoiceWriter,
        parser: ChoiceParser | None,
        index: int,
        delta: Delta,
        deltas: Deltas,
    ) -> bytes:
        if index in self.outcome.finish_reasons:
            return b""  # it ended early
        gate, events = self._gates[index], _events(parser, delta)
        logprobs: Sequence[TokenLogprob] = self._logprobs(delta) if self._parsed.logprobs else ()
        if delta.prompt_log_probs is not None and isinstance(writer, Choice):
            self._score_prompt(writer, delta.prompt_log_probs)
        done = parser is not None and parser.done
        if gate is not None:
            events, logprobs = await gate.feed_in_thread(events, logprobs), ()
            if gate.blocked or done or delta.finish_reason is not None:
                last, logprobs = await gate.end()
                events += last
                for name in ("logprobs", "prompt_logprobs") if isinstance(writer, Choice) else ():
                    scores = getattr(writer, name)
                    setattr(writer, name, None if gate.changed else scores and await gate.shown(scores))
        written = writer.events(events, logprobs)
        blocked = gate is not None and bool(gate.blocked)
        if delta.finish_reason is not None:
            reason = self._finish(index, delta, writer.has_calls)
            if blocked:
                reason = self.outcome.finish_reasons[index] = BLOCKED
            return written + writer.finish(reason)
        if blocked or done:
            reason = BLOCKED if blocked else "tool_calls"
            self._end_early(index, deltas, reason)
            return written + writer.finish(reason)
        return written

    def _writer(self, index: int) -> ChoiceWriter:
        if self._responses is not None:
            return self._responses
        call_id = self._call_id(index)
        if not self._parsed.stream:
            return Choice(index, call_id, logprobs=[] if self._parsed.logprobs else None)
        return ChoiceFrames(self._head, index, self._parsed.include_usage, call_id)

    async def _first_deltas(self, deltas: Deltas) -> list[tuple[int, Delta]]:
        """Return the first deltas, once each choice has one; at the latest when a keep-alive is due.

        Until then a failure is an HTTP status.
        """
        early: list[tuple[int, Delta]] = []
        waiting = set(range(self._parsed.choices))
        loop = asyncio.get_running_loop()
        until = loop.time() + self._settings.keep_alive_seconds
        while waiting and (left := until - loop.time()) > 0:
            if not await deltas.wait(left):
                break
            index, delta = await anext(deltas)
            self._note(index, delta)
            early.append((index, delta))
            waiting.discard(index)
        return early

    def _logprobs(self, delta: Delta) -> list[TokenLogprob]:
        texts = self._server.text.token_texts or NAMELESS_TOKENS
        return texts.logprobs(delta.token_ids, delta.log_probs or (), self._parsed.top_logprobs)

    def _score_prompt(self, choice: Choice, values: Sequence[float]) -> None:
        """Add the log probabilities of the prompt's tokens to a choice."""
        text, parsed = self._server.text, self._parsed
        text.need_encoder()
        ids = list(self._encoded[choice.index // parsed.n].ids)
        if len(ids) != len(values):
            raise InflightError(
                f"the server tells {len(values)} log probabilities for the prompt's {len(ids)} tokens; start the"
                " gateway with the --tokenizer of its model",
                "answer_damaged",
            )
        texts = text.token_texts or NAMELESS_TOKENS
        if parsed.echo and choice.logprobs is not None:
            choice.logprobs = texts.logprobs(ids, values, parsed.top_logprobs) + choice.logprobs
        if parsed.prompt_logprobs is not None:
            choice.prompt_logprobs = texts.logprobs(ids, values, parsed.prompt_logprobs)

    def _note(self, index: int, delta: Delta) -> None:
        self._counts.stream(index, delta, self._server.stream_interval)
        if self.outcome.first_token_at is None:
            self.outcome.first_token_at, self.outcome.answered = time.monotonic(), True

    def _finish(self, index: int, delta: Delta, calls: bool) -> str:
        if delta.finish_reason == "cancelled":
            raise InflightError("the request was cancelled on the server; send it again", "cancelled")
        place, finish_reason = index // self._parsed.n, delta.finish_reason or "stop"
        if delta.usage is None:
            self._count_usage(index)
        else:
            self._counts.report(place, delta.usage)
        if finish_reason == UNKNOWN and self._counts.of(index) >= self._limits[place]:
            finish_reason = "length"
        answer = self._streams[index].generation if self._span is not None else None
        if self._span is not None and answer is not None and answer.timings.server is not None:
            self._span.phases(index, answer.timings.server)
        # As OpenAI does it: a call that was asked for by name is a whole answer.
        reason = finish_reason_of(finish_reason, calls and self._parsed.tools.named is None)
        self.outcome.finish_reasons[index] = reason
        return reason

    def _end_early(self, index: int, deltas: Deltas, reason: str) -> None:
        """Stop generating: a call is complete, and the request allows no other, or a check blocks the rest."""
        self._count_usage(index)
        self.outcome.finish_reasons[index] = reason
        deltas.drop(index)

    def _count_usage(self, index: int) -> None:
        """Take the tokens that the gateway has counted as an answer's usage, which the server does not report."""
        place = index // self._parsed.n
        self._counts.take_counted(index, place, len(self._encoded[place].ids) if self._encoded else None)

    def _call_id(self, index: int) -> str:
        return f"call_{self._head.id[:16]}{index:02x}"


def _events(parser: ChoiceParser | None, delta: Delta) -> list[Event]:
    if parser is None:
        return [TextDelta(delta.text)] if delta.text else []
    events = parser.feed(delta.text) if delta.text else []
    return events if delta.finish_reason is None else [*events, *parser.finish(cut=delta.finish_reason == "length")]
