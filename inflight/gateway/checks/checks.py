"""The checks of a process: of requests before the model, of answers after it, and of the texts of /v1/moderations."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import orjson
from inflight_client.validation import shorten
from prometheus_client import Counter

from inflight.gateway.checks.choice_gate import BLOCKED, ChoiceGate, Note
from inflight.gateway.checks.judges import FAILURES, FindEncoder, Judges, found
from inflight.gateway.checks.specs import CheckSpec, ClassifierCheck, Place, Stage, name_of, stage_of
from inflight.gateway.checks.text_gate import Rule, redacted
from inflight.gateway.key_ring import Caller
from inflight.gateway.outcome import Outcome
from inflight.openai_api.errors import ApiError

_FIELDS = (
    *("messages", "prompt", "input", "instructions", "tools", "chat_template_kwargs", "reasoning_effort"),
    *("response_format", "text", "metadata"),
)
"""The fields of a body whose texts reach the model, or come back."""
_NAMES = ("role", "type")
_LONG_CHARACTERS = 16_384
"""Longer texts are searched by a thread."""
_LEAST_NUMBER = 10**6
Visit = Callable[[str, bool], str]
"""Takes a text and whether it is JSON."""
logger = logging.getLogger("inflight.gateway")


class Checks:
    """Applies a list of checks, which may change while the process runs."""

    def __init__(self, current: Callable[[], Sequence[CheckSpec]], counter: Counter, find: FindEncoder) -> None:
        """`counter` counts by check, place and action. `find` returns a client of what classifies with a model."""
        self._current, self._counter = current, counter
        self._judges = Judges(find)
        self._specs: Sequence[CheckSpec] = ()
        self._stages: dict[tuple[Place, str], Stage] = {}

    async def close(self) -> None:
        await self._judges.close()

    def _stage(self, place: Place, model: str) -> Stage:
        specs = self._current()
        if specs is not self._specs:
            self._specs, self._stages = specs, {}
        if not specs:
            return Stage()
        key = (place, model if any(model in each.models for each in specs) else "")
        if key not in self._stages:
            self._stages[key] = stage_of(specs, *key)
        return self._stages[key]

    def _note(self, place: Place, outcome: Outcome, check: str, action: str) -> None:
        self._counter.labels(check, place, action).inc()
        if (done := f"{check}={action}") not in outcome.checks:
            outcome.checks.append(done)

    def gate(self, model: str, outcome: Outcome, in_json: bool = False) -> ChoiceGate | None:
        """Return what a choice of an answer passes; None if nothing applies. `in_json`: its text is JSON."""
        if not (stage := self._stage("after", model)):
            return None
        ask = partial(self._ask, stage, "after", model)
        return ChoiceGate(stage, ask, partial(self._note, "after", outcome), in_json)

    async def before(self, body: Any, model: str, outcome: Outcome) -> Any:
        """Return a valid body as checks leave it: the same one, if they change nothing.

        Raises ApiError 400 `content_filter` for one that is blocked, and 503 `check_unavailable` for one that waits for
        a verdict which does not come.
        """
        stage = self._stage("before", model)
        if not stage:
            return body
        note = partial(self._note, "before", outcome)
        texts: list[tuple[str, bool]] = []
        sent = {name: body[name] for name in _FIELDS if body.get(name) is not None}
        if _has_token_ids(sent.get("prompt")):
            raise ApiError("token ids can't be checked; send the prompt as text", "unsupported_input", "prompt")

        def collect(text: str, in_json: bool) -> str:
            texts.append((text, in_json))
            return text

        _walk(sent, collect)
        size = sum(len(text) for text, _ in texts)
        for check in stage.sizes:
            if size > check.max_characters:
                note(name_of(check), check.action)
                if check.action == "block":
                    raise _blocked(name_of(check))
        search = partial(self._searched, stage, texts, note)
        left: Sequence[str] = await asyncio.to_thread(search) if size > _LONG_CHARACTERS else search()
        if stage.asked:
            left = await self._ask(stage, "before", model, left, note) or left
        if all(new == old for new, (old, _) in zip(left, texts, strict=True)):
            return body
        others = iter(left)
        return {**body, **_walk(sent, lambda text, in_json: next(others))}

    def _searched(self, stage: Stage, texts: Sequence[tuple[str, bool]], note: Note) -> list[str]:
        """Return the texts as patterns leave them. Raises ApiError for one that is blocked."""

        def on_match(rule: Rule) -> None:
            note(rule.check, rule.action)

        left = []
        for text, in_json in texts:
            if stage.flags is not None:
                redacted(text, stage.flags, on_match, in_json)
            new, cut = redacted(text, stage.rules, on_match, in_json) if stage.rules is not None else (text, None)
            if cut is not None:
                raise _blocked(cut.check)
            left.append(new)
        return left

    async def _ask(
        self, stage: Stage, place: Place, model: str, texts: Sequence[str], note: Note
    ) -> Sequence[str] | None:
        """Return texts as the checks leave them that judge whole ones. Of blocked ones of an answer, return None, of
        those of a request raise ApiError."""
        for check in stage.asked:
            name = name_of(check)
            try:
                flagged, left = await self._judges.verdict(check, place, model, texts)
            except FAILURES as error:
                logger.warning("the check %s gave no verdict: %s", name, str(error) or type(error).__name__)
                note(name, "failed")
                if check.on_error == "open":
                    continue
                if place == "after":
                    return None
                raise ApiError(
                    f"the check {name} gave no verdict; send the request again later",
                    "check_unavailable",
                    status=503,
                    headers={"retry-after": "2"},
                ) from None
            if flagged:
                note(name, check.action)
                if check.action == "block" and place == "after":
                    return None
                if check.action == "block":
                    raise _blocked(name)
            texts = left
        return texts

    async def moderate(self, body: Any, pool: object, caller: Caller) -> bytes:
        """Answer a request to /v1/moderations as JSON. Raises ApiError."""
        known = {each.model: each for each in self._current() if isinstance(each, ClassifierCheck)}
        if not known:
            raise ApiError("no check is a classifier; add one to the routes file", "not_found", status=404)
        if not isinstance(body, Mapping) or not set(body) <= {"model", "input"}:
            raise ApiError("the body must be an object with input, and model if need be", "invalid_request")
        check = known.get(body.get("model") or next(iter(known)))
        if check is None:
            raise ApiError(f"model must be one of: {', '.join(known)}", "model_not_found", "model", 404)
        caller.check_model(check.model)
        given = body.get("input")
        items = given if isinstance(given, list) else [given]
        texts: list[Any] = [each.get("text") if isinstance(each, Mapping) else each for each in items]
        if not texts or not all(isinstance(each, str) for each in texts):
            raise ApiError(f"input is {shorten(given)}; it must be a text or a list of texts", "invalid_value", "input")
        scores = await self._judges.scores(check, texts)
        results = [
            {
                "flagged": found(check, each),
                "categories": {label: score >= check.threshold for label, score in each.items()},
                "category_scores": each,
                "category_applied_input_types": {label: ["text"] for label in each},
            }
            for each in scores
        ]
        return orjson.dumps({"id": f"modr-{secrets.token_hex(12)}", "model": check.model, "results": results})


def _blocked(check: str) -> ApiError:
    return ApiError(f"the check {check} refuses the request; change its text", BLOCKED)


def _has_token_ids(prompt: Any) -> bool:
    return isinstance(prompt, list) and any(not isinstance(each, str) for each in prompt)


def _walk(value: Any, visit: Visit, in_json: bool = False) -> Any:
    """Return a value with other texts. Long numbers, and names that are no identifiers, are texts too."""
    if isinstance(value, str):
        return visit(value, in_json)
    if isinstance(value, list):
        return [_walk(each, visit) for each in value]
    if isinstance(value, Mapping):
        return {
            name if name.isidentifier() else visit(name, False): each
            if name in _NAMES
            else _walk(each, visit, name == "arguments")
            for name, each in value.items()
        }
    if isinstance(value, int | float) and abs(value) >= _LEAST_NUMBER:
        text = str(value)
        return value if (new := visit(text, False)) == text else new
    return value
