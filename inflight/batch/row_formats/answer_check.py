"""Checks answers against the schema that was asked for, since several servers ignore it, and conditions of answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import orjson
from inflight_client import InflightError
from inflight_client.results import Generation
from inflight_client.validation import shorten

from inflight.batch.job.rows import Completion, GenerateRequest, RowAnswer, RowRequest


@lru_cache(64)
def _validator(schema: bytes) -> Any:
    from jsonschema import Draft202012Validator, validators
    from referencing import Registry
    from referencing.jsonschema import DRAFT202012, specification_with

    values = orjson.loads(schema)
    kind = validators.validator_for(values, default=Draft202012Validator)
    kind.check_schema(values)
    resource = specification_with(kind.META_SCHEMA["$schema"], default=DRAFT202012).create_resource(values)
    # An empty registry fetches nothing.
    _check_references(resource, Registry().resolver_with_root(resource))
    skipped = dict.fromkeys(_PATTERNS, _skip)
    if b'"patternProperties"' in schema:  # these apply the patterns too, to find the other properties
        skipped |= dict.fromkeys(("additionalProperties", "unevaluatedProperties"), _skip)
    validator = validators.extend(kind, skipped)(values, registry=Registry())
    validator.is_valid({})  # a reference to itself alone has no end
    return validator


_PATTERNS = ("pattern", "patternProperties")
"""Keywords that are not checked: a regular expression can take unlimited time, during which nothing else runs."""


def _skip(*values: Any) -> None:
    """Find no error."""


def _check_references(resource: Any, resolver: Any) -> None:
    """Raises Unresolvable for a reference that leads nowhere, or out of the schema. Drops each `$schema`, which would
    have its part checked by another class."""
    if isinstance(resource.contents, dict):
        resource.contents.pop("$schema", None)
        for name in ("$ref", "$dynamicRef"):
            if isinstance(reference := resource.contents.get(name), str):
                resolver.lookup(reference)
    for each in resource.subresources():
        _check_references(each, resolver.in_subresource(each))


def check_schema(schema: Mapping[str, Any]) -> None:
    """Raises InflightError `invalid_parameter` for what is no JSON schema, and `package_missing`."""
    try:
        from jsonschema.exceptions import SchemaError
        from referencing.exceptions import Unresolvable
    except ImportError as error:
        raise InflightError(
            f"schemas need the package jsonschema ({error}); install inflight[batch]", "package_missing"
        ) from None
    try:
        _validator(orjson.dumps(schema))
    except SchemaError as error:
        where = f" at {'/'.join(map(str, error.absolute_path))}" if error.absolute_path else ""
        raise InflightError(
            f"the schema is invalid{where}: {error.message[:200]}; correct it", "invalid_parameter"
        ) from None
    except Unresolvable as error:
        raise InflightError(
            f"the schema refers to {shorten(error.ref)}, which is not in it; define it under $defs, and refer to it as"
            " #/$defs/NAME",
            "invalid_parameter",
        ) from None
    except (orjson.JSONEncodeError, RecursionError):
        raise InflightError(
            "the schema is nested too deep, refers to itself alone, or is not JSON; simplify it", "invalid_parameter"
        ) from None
    except Exception as error:  # a dialect of one part alone, and the like
        raise InflightError(
            f"the schema can't be applied ({type(error).__name__}); simplify it", "invalid_parameter"
        ) from None


def asked_schema(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the schema that a body's `response_format` asks for, if it does. Raises InflightError if it is none."""
    asked = body.get("response_format")
    kind = asked.get("type") if isinstance(asked, Mapping) else None
    if kind == "json_object":
        return {"type": "object"}
    described = asked.get("json_schema") if isinstance(asked, Mapping) and kind == "json_schema" else None
    schema = described.get("schema") if isinstance(described, Mapping) else None
    if not isinstance(schema, Mapping):
        return None
    check_schema(schema)
    return schema


def schema_difference(text: str, schema: Mapping[str, Any]) -> str:
    """Return how a text differs from JSON of this schema; empty if it does not. Quotes nothing of the text."""
    from jsonschema.exceptions import best_match

    try:
        value = orjson.loads(text)  # what it takes can be written again, unlike NaN and halves of characters
        error = best_match(_validator(orjson.dumps(schema)).iter_errors(value))
    except RecursionError:
        return "it is nested too deep"
    except ValueError:
        return "it is not JSON, or nested too deep"
    except Exception as problem:  # a reference that leads nowhere, by a class of its own
        return f"the schema can't be applied ({type(problem).__name__})"
    if error is None:
        return ""
    where = "/".join(map(str, error.absolute_path)) or "the whole answer"
    return f"{shorten(where)} does not match the schema's {error.validator!r}"


def answer_texts(answer: RowAnswer) -> list[tuple[str, str]]:
    """Return the text and the finish reason of each choice, without choices that call tools."""
    if isinstance(answer, Generation):
        return [(answer.text, answer.finish_reason)]
    if not isinstance(answer, Completion):
        return []
    texts = []
    for choice in answer.choices:
        message = choice.get("message")
        if isinstance(message, Mapping) and not message.get("tool_calls"):
            texts.append((str(message.get("content") or ""), str(choice.get("finish_reason"))))
        elif not isinstance(message, Mapping):
            texts.append((str(choice.get("text") or ""), str(choice.get("finish_reason"))))
    return texts


def answer_problem(request: RowRequest, answer: RowAnswer) -> InflightError | None:
    """Return the error `answer_invalid` if an answer is not what the row's schema asks for."""
    if not isinstance(request, GenerateRequest) or request.schema is None:
        return None
    for text, reason in answer_texts(answer):
        if difference := schema_difference(text, request.schema):
            cut = "; it was cut off, so raise max_tokens" if reason == "length" else ""
            return InflightError(f"the answer is not the JSON that was asked for: {difference}{cut}", "answer_invalid")
    return None


def mean_log_prob(answer: RowAnswer) -> float | None:
    """Return the mean log probability of an answer's tokens, the least of its choices; None if it is unknown."""
    if isinstance(answer, Generation):
        values = [[float(each) for each in answer.log_probs or ()]]
    elif isinstance(answer, Completion):
        values = [log_probs(choice.get("logprobs")) for choice in answer.choices]
    else:
        return None
    means = [sum(each) / len(each) for each in values if each]
    return min(means) if means else None


def log_probs(logprobs: Any) -> list[float]:
    """Return those of a choice, of a conversation or a text."""
    if not isinstance(logprobs, Mapping):
        return []
    content, values = logprobs.get("content"), logprobs.get("token_logprobs")
    if isinstance(content, list) and content:
        values = [each.get("logprob") for each in content if isinstance(each, Mapping)]
    return [float(each) for each in values if isinstance(each, int | float)] if isinstance(values, list) else []


class Condition:
    """A condition of --refine-when: parts with | between them, of which one is enough; a regular expression is last.

    Raises ValueError with a sentence for what is no condition.
    """

    def __init__(self, text: str) -> None:
        self._pattern: re.Pattern[str] | None = None
        self._least: float | None = None
        found = re.search(r"(?:^|\|)\s*regex:(.+)$", text, re.DOTALL)
        if found:
            try:
                self._pattern = re.compile(found[1].strip())
            except re.error as error:
                raise ValueError(f"{found[1].strip()!r} is no regular expression ({error})") from None
        parts = [part.strip() for part in (text[: found.start()] if found else text).split("|")]
        names = [part for part in parts if part or not found]
        for name in names:
            if bound := re.fullmatch(r"logprob\s*<\s*(-?[0-9]+(?:\.[0-9]+)?)", name):
                self._least = float(bound[1])
            elif name not in ("invalid-json", "schema"):
                raise ValueError(
                    f"{name!r} is no condition; give invalid-json, schema, 'logprob < NUMBER' or regex:PATTERN, with |"
                    " between them"
                )
        self.asks_json, self.asks_schema = "invalid-json" in names, "schema" in names

    @property
    def reads_scores(self) -> bool:
        """Whether it needs the log probabilities of an answer's tokens."""
        return self._least is not None

    def met(self, result: RowAnswer | InflightError) -> str:
        """Return the part that an answer meets, or an error of a wrong form; empty if there is none."""
        if isinstance(result, InflightError):
            wrong = result.code == "answer_invalid"
            return ("schema" if self.asks_schema else "invalid-json" if self.asks_json else "") if wrong else ""
        texts = [text for text, _ in answer_texts(result)]
        if self.asks_json and any(not is_json(text) for text in texts):
            return "invalid-json"
        if self._least is not None and (mean := mean_log_prob(result)) is not None and mean < self._least:
            return f"logprob < {self._least:g}"
        if self._pattern is not None and any(self._pattern.search(text) for text in texts):
            return "regex"
        return ""


def is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except ValueError:
        return False
    return True
