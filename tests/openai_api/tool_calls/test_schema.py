"""The schema of a forced call is over all tools, and the answers that it allows are read as calls."""

from __future__ import annotations

from typing import Any

import pytest
from inflight_client.errors import InvalidRequest

from inflight.openai_api.tool_calls.schema import RequiredCallsParser, named_schema, required_schema
from tests.fixtures.errors import raises
from tests.openai_api.tool_calls.answers import Call, read

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TREE = {
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/node"}, "again": {"$ref": "#"}},
    "$defs": {
        "node": {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/node"}}}}
    },
}


def variants(schema: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = schema["items"]["anyOf"]
    return found


def resolve(schema: dict[str, Any], reference: str) -> Any:
    at: Any = schema
    for key in reference.removeprefix("#").split("/")[1:]:
        at = at[key]
    return at


def test_required_takes_any_tool() -> None:
    schema = required_schema({"f": CITY, "g": None})
    assert (schema["type"], schema["minItems"]) == ("array", 1)
    assert [one["properties"]["name"] for one in variants(schema)] == [{"const": "f"}, {"const": "g"}]
    assert [one["properties"]["parameters"] for one in variants(schema)] == [CITY, {"type": "object"}]
    assert all(one["required"] == ["name", "parameters"] for one in variants(schema))
    assert all(one["additionalProperties"] is False for one in variants(schema))


@pytest.mark.parametrize("parallel", [True, False])
def test_one_call_if_not_parallel(parallel: bool) -> None:
    schema = required_schema({"f": CITY}, parallel_tool_calls=parallel)
    assert schema.get("maxItems") == (None if parallel else 1)


def test_references_stay_within_their_tool() -> None:
    other = TREE | {"$defs": {"node": {"type": "string"}}}
    schema = required_schema({"f": TREE, "g": other})
    for name, original, variant in zip("fg", (TREE, other), variants(schema), strict=True):
        properties = variant["properties"]["parameters"]["properties"]
        node = resolve(schema, properties["root"]["$ref"])
        assert node["type"] == original["$defs"]["node"]["type"]  # type: ignore[index]
        assert resolve(schema, properties["again"]["$ref"]) == schema["$defs"][name]
    children = resolve(schema, "#/$defs/f/$defs/node")["properties"]["children"]["items"]
    assert resolve(schema, children["$ref"])["properties"]["children"]


def test_a_property_called_ref_is_no_reference() -> None:
    schema = required_schema({"f": {"type": "object", "properties": {"$ref": {"type": "string"}}}})
    assert "$defs" not in schema


def test_a_deep_schema_is_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"not": deep}
    with raises(InvalidRequest, "invalid_parameter", naming="f"):
        required_schema({"f": deep})


def test_named_schema_is_that_of_the_parameters() -> None:
    assert named_schema(CITY) == CITY
    assert named_schema(None) == named_schema({}) == {"type": "object"}


def test_required_calls_are_read() -> None:
    answer = '[{"name": "f", "parameters": {"city": "京"}}, {"name": "g", "parameters": {}}]'
    assert read(RequiredCallsParser(("f", "g")), answer) == [Call("f", '{"city": "京"}'), Call("g", "{}")]
