"""docs/tensorrt-llm-parameters.md describes each parameter; INFLIGHT_UPDATE_GOLDEN=1 rewrites its table."""

from __future__ import annotations

import os
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from inflight.deploy.repository.tensorrt_llm.parameters import TensorRtLlmParameters
from inflight.deploy.repository.typed_parameters import (
    AbsolutePath,
    Bytes,
    Choices,
    ClosedFraction,
    Count,
    Groups,
    Instances,
    Numbers,
    OpenFraction,
    Positive,
)

PAGE = Path(__file__).parents[4] / "docs" / "tensorrt-llm-parameters.md"
WORDS = {
    Positive: "number from 1",
    Count: "number from 0",
    Instances: "1 to 64",
    Bytes: "bytes",
    OpenFraction: "between 0 and 1",
    Numbers: "numbers, separated by commas",
    Groups: "numbers, separated by commas; groups by semicolons",
    Choices: "paths of a tree",
    bool: "true or false",
    ClosedFraction: "0 to 1",
    AbsolutePath: "absolute path",
}
HEAD = "| parameter | value | default | description |\n|---|---|---|---|\n"


def kind(annotation: Any) -> str:
    if get_origin(annotation) in (Union, types.UnionType):
        return " or ".join(kind(one) for one in get_args(annotation) if one is not type(None))
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(annotation))
    return WORDS[annotation]


def rows() -> Iterator[str]:
    written = TensorRtLlmParameters().pbtxt_values()
    hints = get_type_hints(TensorRtLlmParameters, include_extras=True)  # pydantic takes the bounds apart
    for name, field in TensorRtLlmParameters.model_fields.items():
        default = f"`{written[name]}`" if name in written else ""
        yield f"| `{name}` | {kind(hints[name])} | {default} | {field.description} |\n"


def test_the_page_tells_of_each_parameter() -> None:
    table = HEAD + "".join(rows())
    text = PAGE.read_text(encoding="utf-8")
    if os.environ.get("INFLIGHT_UPDATE_GOLDEN"):
        text = re.sub(r"\| parameter \|.*?\n(?!\|)", table, text + "\n", flags=re.DOTALL).rstrip("\n") + "\n"
        PAGE.write_text(text, encoding="utf-8")
    assert table in text


def test_each_parameter_says_what_it_is() -> None:
    silent = [name for name, field in TensorRtLlmParameters.model_fields.items() if not field.description]
    assert silent == []
