"""A schema is enforced whole, or refused: random answers of a model satisfy each schema that is accepted."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from inflight.runtime.backends.openvino.guided_decoding.schema_support import find_unsupported
from inflight.runtime.backends.openvino.model_runner import OpenVinoModelRunner
from inflight.runtime.messages import DecodingGuide, FinishReason, GenerationRequest, GuideType, SamplingConfig
from tests.runtime.backends.drive_runner import CollectedOutput, run
from tests.runtime.backends.openvino.guided_decoding.test_guide_cache import END, PROMPT, engine_dir, stepper, text_of

__all__ = ["engine_dir", "stepper", "text_of"]

BOOLEAN = {"type": "boolean"}
ENFORCED: list[Any] = [
    {"type": ["string", "null"], "maxLength": 2},
    {"type": "object", "propertyNames": {"enum": ["x"]}, "maxProperties": 1},
    {"type": "object", "patternProperties": {"^a$": BOOLEAN}, "additionalProperties": False},
    {"properties": {"a": BOOLEAN}, "required": ["a"], "additionalProperties": False},
    {"items": BOOLEAN, "maxItems": 2},
    {"type": "array", "prefixItems": [BOOLEAN], "items": {"const": 3}, "minItems": 1, "maxItems": 2},
    {"type": "object", "properties": {"a": BOOLEAN, "b": BOOLEAN}, "additionalProperties": False, "minProperties": 1},
    {"type": "integer", "minimum": 10, "maximum": 12, "exclusiveMaximum": 11},
    {"type": "number", "minimum": 2},
    {"type": "string", "pattern": "^(?:a|b){2}$"},
    {"type": "object", "oneOf": [{"type": "object", "properties": {"a": BOOLEAN}, "additionalProperties": False}]},
    {"allOf": [BOOLEAN]},
    {"$defs": {"flag": BOOLEAN}, "$ref": "#/$defs/flag", "description": "a flag"},
    {"type": "string", "enum": ["a", "b"]},
]
NOT_ENFORCED: list[tuple[Any, str]] = [
    ({"type": "boolean", "not": {"const": True}}, "not"),
    ({"type": "integer", "multipleOf": 10}, "multipleOf"),
    ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    ({"type": "array", "contains": BOOLEAN}, "contains"),
    ({"allOf": [BOOLEAN, {"const": True}]}, "allOf"),
    ({"$ref": "http://example.com/schema"}, "$ref"),
    ({"$defs": {"text": {"type": "string"}}, "$ref": "#/$defs/text", "maxLength": 1}, "maxLength"),
    ({"$dynamicRef": "#x"}, "$dynamicRef"),
    ({"$ref": "#x", "$defs": {"a": {"$anchor": "x"}}}, "$ref"),
    ({"type": ["number", "object"], "required": ["x"]}, "'x'"),
    ({"type": "object", "properties": {"a": BOOLEAN}, "anyOf": [{"required": ["a"]}]}, "properties"),
    ({"type": "string", "anyOf": [{"minLength": 3}]}, "type"),
    ({"const": 3, "enum": [4]}, "enum"),
    ({"type": "string", "pattern": "^a+$", "minLength": 3}, "minLength"),
    ({"type": "number", "minimum": 0.1}, "minimum"),
    ({"type": "number", "maximum": 2}, "maximum"),
    ({"type": "number", "exclusiveMinimum": 0}, "exclusiveMinimum"),
    ({"type": "integer", "minimum": 5, "exclusiveMinimum": 0}, "exclusiveMinimum"),
    ({"minimum": 3}, "minimum"),
    ({"type": "object", "required": ["q"], "additionalProperties": BOOLEAN}, "'q'"),
    ({"type": "object", "propertyNames": {"maxLength": 1}, "additionalProperties": BOOLEAN}, "additionalProperties"),
    ({"type": "object", "patternProperties": {"^b$": BOOLEAN}, "properties": {"a": BOOLEAN}}, "properties"),
    ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
]


@pytest.mark.parametrize("schema", ENFORCED, ids=json.dumps)
def test_answers_satisfy_a_schema_that_is_accepted(
    schema: Any, stepper: OpenVinoModelRunner, text_of: Callable[[CollectedOutput], str]
) -> None:
    guide = DecodingGuide(GuideType.JSON_SCHEMA, json.dumps(schema))
    sampled = (SamplingConfig(temperature=1.0, top_p=1.0, seed=seed) for seed in range(6))
    requests = [GenerationRequest(PROMPT, 200, END, sampling=sampling, guide=guide) for sampling in sampled]
    whole = [answer for answer in run(stepper, *requests) if answer.reason is FinishReason.STOP]
    assert whole
    for answer in whole:
        jsonschema.validate(json.loads(text_of(answer)), schema)


@pytest.mark.parametrize("place", ["{}", '{"$defs": {"inner": {}}}', '{"items": {"anyOf": [{}]}}'])
@pytest.mark.parametrize(("schema", "keyword"), NOT_ENFORCED, ids=[json.dumps(schema) for schema, _ in NOT_ENFORCED])
def test_what_can_t_be_enforced_is_named_wherever_it_is(schema: Any, keyword: str, place: str) -> None:
    found = find_unsupported(json.loads(place.replace("{}", json.dumps(schema))))
    assert keyword in found


@pytest.mark.parametrize(
    ("reference", "keyword"),
    [("#/components/A", "multipleOf"), ("#/list/0", "not"), ("#/a~1b", "uniqueItems"), ("#/nowhere", "$ref")],
)
def test_references_are_followed(reference: str, keyword: str) -> None:
    targets = {"components": {"A": {"multipleOf": 7}}, "list": [{"not": {}}], "a/b": {"uniqueItems": True}}
    assert keyword in find_unsupported({"type": "object", "properties": {"p": {"$ref": reference}}, **targets})
    assert not find_unsupported({"$defs": {"node": {"items": {"$ref": "#/$defs/node"}}}, "$ref": "#/$defs/node"})


@pytest.mark.parametrize("value", ["enum", "const", "default", "examples"])
def test_values_are_no_schemas(value: str) -> None:
    assert not find_unsupported({value: [{"not": {}, "multipleOf": 3}]})
