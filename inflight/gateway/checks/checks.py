"""The checks of a process: of requests before the model, of answers after it, and of the texts of /v1/moderations."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import orjson
from inflight_client.sampling import Guide
from prometheus_client import Counter

from inflight.gateway.checks.gate import BLOCKED, ChoiceGate, Gate, run_in_thread
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
    *("reasoning", "response_format", "text", "metadata"),
)
"""The fields of a body whose texts reach the model, or come back."""
_LEAST_NUMBER = 10**6
_NAMES = frozenset(
    (
        *(*_FIELDS, "role", "content", "type", "name", "id", "call_id", "tool_call_id", "tool_calls", "function"),
        *("arguments", "output", "status", "refusal", "reasoning", "reasoning_content", "enable_thinking", "documents"),
        *("format", "schema", "json_schema", "strict", "regex", "pattern", "ebnf", "parameters", "properties", "items"),
        *("required", "title", "description", "default", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "$defs"),
        *("additionalProperties", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "thinking"),
        *("summary", "annotations", "logprobs", "effort", "generate_summary"),
    )
)
"""Names of the protocol and of JSON Schema; all others are texts of an application."""
_TEXT_PARTS = ("text", "input_text", "output_text")
_VALUES = {
    "role": ("system", "developer", "user", "assistant", "tool"),
    "type": (
        *("object", "array", "string", "number", "integer", "boolean", "null", "function", "message", "function_call"),
        *("function_call_output", "json_object", "json_schema", "regex", "ebnf", "refusal", "reasoning", "thinking"),
        *("reasoning_text", "summary_text", "redacted_thinking", *_TEXT_PARTS),
    ),
}
"""Words of the protocol under its names."""


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

        try:
            await run_in_thread(count_characters(sent), _walk, sent, pass_on)
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
        scored = await self._judges.scores(check, texts)
        if missing := [label for label in check.labels for scores in scored if scores and label not in scores]:
            why = f"the check {check.name} looks for {missing[0]}, which is no label of {check.model}"
            raise ApiError(f"{why}; correct the routes file", "check_unavailable", status=503)
        results = [
            {
                "flagged": found(check, scores),
                "categories": {
                    label: label in check.labels and score >= check.threshold for label, score in scores.items()
                },
                "category_scores": scores,
                "category_applied_input_types": {label: ["text"] for label in scores},
            }
            for scores in scored
        ]
        return orjson.dumps({"id": f"modr-{secrets.token_hex(12)}", "model": check.model, "results": results})


def _walk(value: Any, visit: Callable[[str, bool], str], name: str = "") -> Any:
    """Return the value of a name with its texts replaced by what `visit` returns for a text and whether it is JSON.

    Long numbers, and names that are none of the protocol, are texts too.
    """
    if isinstance(value, str):
        return value if value in _VALUES.get(name, ()) else visit(value, name == "arguments")
    if isinstance(value, list):
        if name in ("content", "output"):
            return _parts(value, visit)
        return [_walk(each, visit, name if name in _VALUES else "") for each in value]
    if isinstance(value, Mapping):
        return {each if each in _NAMES else visit(each, False): _walk(value[each], visit, each) for each in value}
    if isinstance(value, int | float) and abs(value) >= _LEAST_NUMBER:
        return value if (new := visit(str(value), False)) == str(value) else new
    return value


def _parts(value: list[Any], visit: Callable[[str, bool], str]) -> list[Any]:
    """Return the parts of a message with their texts replaced. The model sees these as one text, so they are visited
    as one; if it is changed, the first part has all of it."""
    texts = {
        place: each["text"]
        for place, each in enumerate(value)
        if isinstance(each, Mapping) and each.get("type") in _TEXT_PARTS and isinstance(each.get("text"), str)
    }
    left, joined = texts, "\n".join(texts.values())
    if texts and (text := visit(joined, False)) != joined:
        left = {next(iter(texts)): text}
    parts = [
        {**_walk({name: each[name] for name in each if name != "text"}, visit), "text": left.get(place)}
        if place in texts
        else _walk(each, visit)
        for place, each in enumerate(value)
    ]
    return [each for place, each in enumerate(parts) if place in left or place not in texts]
