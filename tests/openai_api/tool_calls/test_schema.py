"""The schema of a forced call is over all tools, and the answers that it allows are read as calls."""

from __future__ import annotations

from typing import Any

import pytest

from inflight.openai_api.tool_calls.schema import MAX_REQUIRED_CALLS, RequiredCallsParser, call_schema
from inflight.openai_api.tools import Tools
from tests.openai_api.tool_calls.answers import Call, read

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TREE = {
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/node"}, "again": {"$ref": "#"}},
    "$defs": {
        "node": {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/node"}}}}
    },
}


def tools(parallel: bool = True, **parameters: Any) -> Tools:
    functions = tuple({"name": name, "parameters": each} for name, each in parameters.items())
    return Tools(functions, "required", parallel=parallel)


def resolve(schema: dict[str, Any], reference: str) -> Any:
    at: Any = schema
    for key in reference.removeprefix("#").split("/")[1:]:
        at = at[key]
    return at


def test_required_takes_any_tool() -> None:
    schema = call_schema(tools(f=CITY, g={}))
    assert (schema["type"], schema["minItems"]) == ("array", 1)
    variants = schema["items"]["anyOf"]
    assert [each["properties"]["name"]["enum"] for each in variants] == [["f"], ["g"]]
    parameters = [resolve(schema, each["properties"]["parameters"]["$ref"]) for each in variants]
    assert parameters == [CITY, {"type": "object"}]
    assert all(each["required"] == ["name", "parameters"] for each in variants)
    assert all(each["additionalProperties"] is False for each in variants)


@pytest.mark.parametrize(("parallel", "most"), [(True, MAX_REQUIRED_CALLS), (False, 1)])
def test_the_number_of_calls_is_bounded(parallel: bool, most: int) -> None:
    assert call_schema(tools(parallel, f=CITY))["maxItems"] == most


def test_references_stay_within_their_tool() -> None:
    other = {"$ref": "#/$defs/node", "$defs": {"node": {"type": "string"}}}
    schema = call_schema(tools(f=TREE, g=other))
    tree, text = (resolve(schema, each["properties"]["parameters"]["$ref"]) for each in schema["items"]["anyOf"])
    assert resolve(schema, tree["properties"]["again"]["$ref"]) is tree
    node = resolve(schema, tree["properties"]["root"]["$ref"])
    assert resolve(schema, node["properties"]["children"]["items"]["$ref"]) is node
    assert resolve(schema, text["$ref"]) == {"type": "string"}


def test_a_property_called_ref_is_no_reference() -> None:
    parameters = {"type": "object", "properties": {"$ref": {"type": "string"}}}
    assert call_schema(tools(f=parameters))["$defs"]["tool0"] == parameters


@pytest.mark.parametrize(("parameters", "schema"), [(CITY, CITY), ({}, {"type": "object"})])
def test_the_schema_of_a_named_call_is_that_of_its_arguments(parameters: Any, schema: Any) -> None:
    assert call_schema(Tools(tools(f=parameters, g=TREE).functions, "function", "f")) == schema


def test_required_calls_are_read() -> None:
    answer = '[{"name": "f", "parameters": {"city": "京"}}, {"name": "g", "parameters": {}}]'
    assert read(RequiredCallsParser(("f", "g")), answer) == [Call("f", '{"city": "京"}'), Call("g", "{}")]
