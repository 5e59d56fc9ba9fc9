"""docs/tensorrt-llm.md tells of each field of the recipe and each architecture, in the code's own words."""

from __future__ import annotations

import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from build_engines.capabilities.tensorrt_llm import PYTORCH_ONLY, WEIGHT_ONLY
from build_engines.tensorrt_llm.recipe import Recipe
from tests.build_engines.tensorrt_llm.models import ARCHITECTURES

PAGE = Path(__file__).resolve().parents[3] / "docs" / "tensorrt-llm.md"
FORMATS = ("fp8", "nvfp4", "int8_sq", "int4_awq", "w4a8_awq")


def recipe_fields(part: type[BaseModel] = Recipe, prefix: str = "") -> Iterator[tuple[str, type[BaseModel], str]]:
    """The dotted name of each field, its section, and its name; sections themselves are skipped."""
    for name, field in part.model_fields.items():
        choices = get_args(field.annotation) or (field.annotation,)
        inner = next((choice for choice in choices if hasattr(choice, "model_fields")), None)
        if inner is None:
            yield prefix + name, part, name
        else:
            yield from recipe_fields(inner, f"{prefix}{name}.")


def field_rows() -> Iterator[str]:
    yield "| field | values | default | description |"
    yield "|---|---|---|---|"
    for dotted, part, name in recipe_fields():
        field = part.model_fields[name]
        description = " ".join((field.description or "").split())
        yield f"| `{dotted}` | {said(field.annotation)} | {default(field.default)} | {description} |"


def said(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return said(arguments[0])
    if origin in (Union, types.UnionType):
        return said(next(one for one in arguments if one is not type(None)))
    if origin is Literal:
        return ", ".join(str(one) for one in arguments)
    if origin is tuple:
        return "a list of paths" if arguments[0] is Path else f"a list of {said(arguments[0])}"
    return {int: "a number", bool: "true, false", str: "a text", Path: "a path"}[annotation]


def default(value: Any) -> str:
    if value is PydanticUndefined or value is None or value == ():
        return "–"
    return str(value).lower() if isinstance(value, bool) else str(value)


def capability_rows() -> Iterator[str]:
    columns = ("architecture", "script", *WEIGHT_ONLY, *FORMATS, "KV fp8, int8", "pipeline", "LoRA", "look-ahead")
    yield f"| {' | '.join(columns)} |"
    yield "|" + "---|" * len(columns)
    for name, architecture in ARCHITECTURES.items():
        formats = [mark(quantization in architecture.quantizations) for quantization in (*WEIGHT_ONLY, *FORMATS)]
        room = architecture.family.script.removesuffix("/convert_checkpoint.py")
        family = architecture.family
        can = [mark(yes) for yes in (architecture.quantized_cache, family.pipeline, family.lora, family.lookahead)]
        cells = [f"`{name}`", room, *formats, *can]
        yield f"| {' | '.join(cells)} |"


def mark(yes: bool) -> str:
    return "yes" if yes else "–"


def test_the_page_tells_of_every_field() -> None:
    assert "\n".join(field_rows()) in PAGE.read_text(encoding="utf-8")


def test_the_page_tells_of_every_architecture() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert "\n".join(capability_rows()) in page
    assert all(f"`{name}`" in page for name in PYTORCH_ONLY)


def test_every_field_says_what_it_is() -> None:
    assert all(part.model_fields[name].description for _, part, name in recipe_fields())


def test_the_recipe_of_the_page_is_one() -> None:
    text = PAGE.read_text(encoding="utf-8").split("```yaml\n")[1].split("```")[0]
    recipe = Recipe.model_validate(yaml.safe_load(text))
    assert (recipe.quantization, recipe.tensor_parallel, recipe.limits.max_seq_len) == ("fp8", 2, 16384)
