"""The tables of fields as a page of the documentation: `python -m inflight.openai_api.fields_docs > FILE`."""

from __future__ import annotations

from collections.abc import Mapping

from inflight.openai_api.encoding_request import PATHS
from inflight.openai_api.fields import (
    CHAT_FIELDS,
    CLASSIFY_FIELDS,
    COMPLETION_FIELDS,
    EMBEDDING_FIELDS,
    RERANK_FIELDS,
    RESPONSES_FIELDS,
    TEXT2TEXT_FIELDS,
    Field,
    Tier,
)
from inflight.openai_api.transcription_request import AUDIO_FIELDS, AUDIO_PATHS

_HEAD = """\
# Fields of the gateway

What the [gateway](gateway.md) does with each field of a request. This page is generated from the tables that its parser
uses ([fields.py](../inflight/openai_api/fields.py)).

- **honoured**: it does what the API says.
- **refused**: any value that asks for something is answered with 400, and the error names the field. Null is accepted.
- **no effect**: it is accepted and changes nothing. The response header `x-inflight-no-effect` lists these fields.

A field that is not listed is refused as unknown.
"""


def render() -> str:
    tables: dict[str, Mapping[str, Field]] = {
        "/v1/chat/completions": CHAT_FIELDS,
        "/v1/completions": COMPLETION_FIELDS,
        "/v1/responses": RESPONSES_FIELDS,
        ", ".join(PATHS["embed"]): EMBEDDING_FIELDS,
        ", ".join(PATHS["rerank"]): RERANK_FIELDS,
        ", ".join(PATHS["classify"]): CLASSIFY_FIELDS,
        ", ".join(PATHS["text2text"]): TEXT2TEXT_FIELDS,
        **{path: AUDIO_FIELDS[task] for task, path in AUDIO_PATHS.items()},
    }
    parts = [_HEAD]
    for path, fields in tables.items():
        parts.append(f"\n## {path}\n\n| field | | |\n|---|---|---|\n")
        ordered = sorted(fields.items(), key=lambda pair: list(Tier).index(pair[1].tier))
        parts += [f"| `{name}` | {field.tier.value} | {field.note} |\n" for name, field in ordered]
    return "".join(parts)


if __name__ == "__main__":
    print(render(), end="")
