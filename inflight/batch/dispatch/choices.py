"""Rows of Triton whose answer has several choices, tool calls or reasoning, which the gateway does for its callers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from inflight_client import AsyncClient, InflightError
from inflight_client.call import CallOptions, CheckedMessages, Prompt
from inflight_client.results import Generation, Usage

from inflight.batch.job.rows import Completion, GenerateRequest
from inflight.common.request_error import RequestError
from inflight.openai_api.choice_parsers import ParserChoice
from inflight.openai_api.errors import ApiError
from inflight.openai_api.response import Choice, finish_reason_of, usage_body
from inflight.openai_api.seeds import choice_seed, is_reproducible
from inflight.openai_api.token_text import NAMELESS_TOKENS
from inflight.text.chat_template import ChatRenderer

_ELSEWHERE = "send this job to the gateway's address: --server openai+http://HOST:PORT/v1"


@dataclass(frozen=True)
class ModelTemplate:
    """The chat templates of a model, and the texts of its special tokens, which its answers leave out."""

    renderer: ChatRenderer
    special: frozenset[str]

    @classmethod
    @lru_cache(8)
    def load(cls, engine_dir: str) -> ModelTemplate | None:
        """Load those of an engine that is served from this machine; None if its files are not here."""
        try:
            renderer = ChatRenderer.from_directory(engine_dir)
            tokens = json.loads((Path(engine_dir) / "tokenizer.json").read_bytes())["added_tokens"]
            special = frozenset(token["content"] for token in tokens if token["special"])
        except (OSError, RequestError, ValueError, KeyError, TypeError):
            return None
        return None if renderer is None else cls(renderer, special)


def row_parsers(request: GenerateRequest, prompt: Prompt, template: ModelTemplate | None) -> ParserChoice | None:
    """Return the parsers of a conversation's answer; None if it is text as it is. Raises InflightError for tools of a
    model whose calls can't be read here."""
    if not request.chat or (template is None and not request.tools.active):
        return None
    if template is None:
        raise InflightError(
            f"tools need the model's chat template, which is not on this machine; {_ELSEWHERE}", "unsupported_input"
        )
    try:
        parsers = ParserChoice(request, template.renderer.sources)
    except ApiError:
        raise InflightError(
            "the format in which this model calls tools is unknown; start a gateway with --tool-call-parser, and"
            f" {_ELSEWHERE}",
            "unsupported_input",
        ) from None
    if any(token in parsers.kept for token in template.special):
        if not request.tools.active:
            return None
        raise InflightError(
            f"the model writes its calls with special tokens, which Triton's answers leave out; {_ELSEWHERE}",
            "unsupported_input",
        )
    if parsers.tags is not None and not isinstance(prompt, str):
        try:
            rendered = template.renderer.render(prompt, **_template_kwargs(request))
        except RequestError as error:
            raise InflightError(str(error), error.code) from None
        parsers.inside = rendered.rstrip().endswith(parsers.tags.start)
    return parsers


def _template_kwargs(request: GenerateRequest) -> dict[str, Any]:
    kwargs = dict(request.options.get("chat_template_kwargs", {}))
    return kwargs | {"tools": request.tools.for_template()} if request.tools.active else kwargs


async def complete(
    client: AsyncClient, prompt: Prompt, request: GenerateRequest, options: CallOptions, parsers: ParserChoice | None
) -> Completion:
    """Send a row once for each of its choices, with the gateway's seeds, and return its whole answer."""
    sampling = options["sampling"]
    if parsers is not None:
        try:
            sampling = parsers.guided(sampling)
        except ApiError as error:
            raise InflightError(str(error), error.code) from None
        if kwargs := _template_kwargs(request):
            options = {**options, "chat_template_kwargs": kwargs}
    reproducible = is_reproducible(await client.deployment())
    if request.n > 1 and not isinstance(prompt, str):
        prompt = CheckedMessages(prompt)

    async def one(index: int) -> Generation:
        seed = choice_seed(request.prompt, sampling, index, reproducible)
        own = replace(sampling, seed=seed) if request.n > 1 and sampling.temperature != 0 else sampling
        call: CallOptions = {**options, "sampling": own, "request_id": f"{options['request_id']}-{index}"}
        return await client.generate(prompt, **call)

    tasks = [asyncio.ensure_future(one(index)) for index in range(request.n)]
    try:
        answers = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    if any(answer.finish_reason == "cancelled" for answer in answers):
        raise InflightError("another client cancelled the request on the server", "cancelled")
    choices = tuple(_choice(index, answer, request, parsers) for index, answer in enumerate(answers))
    usage = _usage(answers)
    return Completion(choices, usage, {} if usage is None else {"usage": usage_body(usage)})


def _choice(index: int, answer: Generation, request: GenerateRequest, parsers: ParserChoice | None) -> dict[str, Any]:
    choice = Choice(index, f"call_{index:02x}")
    parser = None if parsers is None else parsers.parser()
    if parser is None:
        choice.text(answer.text)
    else:
        events = [*parser.feed(answer.text), *parser.finish(cut=answer.finish_reason == "length")]
        choice.events(events, ())
    if answer.log_probs is not None:
        most = request.options.get("top_log_probs", 0)
        choice.logprobs = NAMELESS_TOKENS.logprobs(answer.token_ids, answer.log_probs, most)
    # As OpenAI does it: a call that was asked for by name is a whole answer.
    choice.finish(finish_reason_of(answer.finish_reason, choice.has_calls and request.tools.named is None))
    return choice.chat_choice() if request.chat else choice.text_choice()


def _usage(answers: Sequence[Generation]) -> Usage | None:
    """Return the tokens of the prompt, once, and of all choices."""
    usages = [answer.usage for answer in answers if answer.usage is not None]
    if len(usages) < len(answers):
        return None
    return Usage(usages[0].input_tokens, sum(usage.output_tokens for usage in usages))
