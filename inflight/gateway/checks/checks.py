"""The checks of a process: of requests before the model, of answers after it, and of the texts of /v1/moderations."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import orjson
from inflight_client.sampling import Guide
from prometheus_client import Counter

from inflight.gateway.checks.gate import BLOCKED, ChoiceGate, Gate
from inflight.gateway.checks.judges import FindEncoder, Judges, found
from inflight.gateway.checks.specs import CheckSpec, ClassifierCheck, Place, Stage, stage_of
from inflight.gateway.checks.text_gate import TooMuchError
from inflight.gateway.key_ring import Caller
from inflight.gateway.outcome import Outcome
from inflight.openai_api.encoding_request import parse_encoding
from inflight.openai_api.errors import ApiError
from inflight.openai_api.request import count_characters

_FIELDS = (
    *("messages", "prompt", "input", "instructions", "tools", "chat_template_kwargs", "reasoning_effort"),
    *("response_format", "text", "metadata"),
)
"""The fields of a body whose texts reach the model, or come back."""
_LEAST_NUMBER = 10**6
_LONG_CHARACTERS = 16_384
_LONG_TEXTS = ThreadPoolExecutor(1, "long-checks")
"""Longer texts wait for each other, and no short one for them."""


class Checks:
    """Applies a list of checks, which may change while the process runs."""

    def __init__(self, current: Callable[[], Sequence[CheckSpec]], counter: Counter, find: FindEncoder) -> None:
        """`counter` counts by check, place and action. `find` returns a client of what classifies with a model."""
        self._current, self._counter = current, counter
        self._judges = Judges(find)
        self.close = self._judges.close
        self._specs: Sequence[CheckSpec] = ()
        self._stages: dict[tuple[Place, str], Stage] = {}

    def stage(self, place: Place, model: str) -> Stage | None:
        """Return what applies now; None: nothing."""
        specs = self._current()
        if specs is not self._specs:
            self._specs, self._stages = specs, {}
        key = (place, model if any(model in each.models for each in specs) else "")
        if key not in self._stages:
            self._stages[key] = stage_of(specs, *key)
        return self._stages[key] if any(self._stages[key]) else None

    def _note(self, outcome: Outcome, place: Place, check: str, action: str) -> None:
        self._counter.labels(check, place, action).inc()
        if (done := f"{check}={action}") not in outcome.checks:
            outcome.checks.append(done)

    def gate(self, model: str, outcome: Outcome, guide: Guide | None) -> ChoiceGate | None:
        """Return what a choice of an answer passes, whose text may have to match a guide; None if nothing applies."""
        if (stage := self.stage("after", model)) is None:
            return None
        in_json = guide is not None and guide.type.startswith("json")
        return ChoiceGate(stage, self._judges, "after", model, partial(self._note, outcome), in_json=in_json)

    async def before(self, body: Any, model: str, outcome: Outcome) -> Any:
        """Return a valid body as checks leave it: the same one, if they change nothing.

        Raises ApiError 400 `content_filter` for one that is blocked, and 503 `check_unavailable` for one that waits for
        a verdict which does not come.
        """
        if (stage := self.stage("before", model)) is None:
            return body
        sent = {name: body[name] for name in _FIELDS if name in body}
        if isinstance(sent.get("prompt"), list) and any(not isinstance(each, str) for each in sent["prompt"]):
            raise ApiError("token ids can't be checked; send the prompt as text", "unsupported_input", "prompt")
        gate = Gate(stage, self._judges, "before", model, partial(self._note, outcome))
        texts: list[str] = []

        def pass_on(text: str, in_json: bool) -> str:
            texts.append(text)
            return gate.pass_on(len(texts), text, True, in_json) if not gate.blocked else ""

        is_long = count_characters(sent) > _LONG_CHARACTERS
        try:
            await asyncio.get_running_loop().run_in_executor(_LONG_TEXTS if is_long else None, _walk, sent, pass_on)
        except TooMuchError:
            raise ApiError("the texts have too many numbers to check; send fewer at a time", BLOCKED) from None
        await gate.judge()
        if gate.failed:
            sentence = f"the check {gate.blocked} gave no verdict; send the request again later"
            raise ApiError(sentence, "check_unavailable", status=503, headers={"retry-after": "2"})
        if gate.blocked:
            raise ApiError(f"the check {gate.blocked} refuses the request; change its text", BLOCKED)
        if gate.texts == texts:
            return body
        left = iter(gate.texts)
        return {**body, **_walk(sent, lambda text, in_json: next(left))}

    async def moderate(self, body: Any, pool: object, caller: Caller) -> bytes:
        """Answer a request to /v1/moderations as JSON. Raises ApiError."""
        known = {each.model: each for each in self._current() if isinstance(each, ClassifierCheck)}
        parsed = parse_encoding("classify", body)
        check = known.get(parsed.model or next(iter(known), ""))
        if check is None:
            names = ", ".join(known) or "none"
            raise ApiError(
                f"model must be that of a classifier among the checks: {names}", "model_not_found", "model", 404
            )
        caller.check_model(check.model)
        texts: Sequence[Any] = getattr(parsed, "texts", ())
        if not isinstance(texts[0], str):
            raise ApiError("input has token ids; send texts", "invalid_parameter", "input")
        results = [
            {
                "flagged": found(check, scores),
                "categories": {label: score >= check.threshold for label, score in scores.items()},
                "category_scores": scores,
                "category_applied_input_types": {label: ["text"] for label in scores},
            }
            for scores in await self._judges.scores(check, texts)
        ]
        return orjson.dumps({"id": f"modr-{secrets.token_hex(12)}", "model": check.model, "results": results})


def _walk(value: Any, visit: Callable[[str, bool], str], in_json: bool = False) -> Any:
    """Return a value whose texts are replaced by what `visit` returns for a text and whether it is JSON.

    Long numbers, and names that are no identifiers, are texts too.
    """
    if isinstance(value, str):
        return visit(value, in_json)
    if isinstance(value, list):
        return [_walk(each, visit) for each in value]
    if isinstance(value, Mapping):
        return {
            name if name.isidentifier() else visit(name, False): each
            if name in ("role", "type")
            else _walk(each, visit, name == "arguments")
            for name, each in value.items()
        }
    if isinstance(value, int | float) and abs(value) >= _LEAST_NUMBER:
        return value if (new := visit(str(value), False)) == str(value) else new
    return value
