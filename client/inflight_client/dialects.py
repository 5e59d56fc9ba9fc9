"""What servers of OpenAI's protocol can do, each kind a dialect: one table of fields, and one of the kinds of server.

A field that a server would refuse, or would ignore without saying so, is refused here by its name. Other spellings are
translated. A field that is in no table is sent as it is, since a server may have options of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from inflight_client.errors import InflightError
from inflight_client.validation import shorten

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
EMBEDDINGS, RERANK, CLASSIFY, TRANSLATE = "/v1/embeddings", "/v1/rerank", "/v1/classify", "/v1/translate"


@dataclass(frozen=True)
class Dialect:
    """A kind of server.

    `owner` is `owned_by` in its list of models; `paths` are the routes that it has, each with its path if that is
    beside the API's; `health` is such a path too, or empty; `about` is one whose JSON has the version in the field
    `version`, and `known_by` a field of it that only this server has.
    `guides` has the fields for a `response_format` that is spelt differently (`KIND text`: for a text, not a chat),
    with VALUE for the schema or text, or None where the server has no such guide. `silently` says what an answer alone
    does not show.
    """

    title: str
    owner: str = ""
    paths: Mapping[str, str] = field(default_factory=dict)
    health: str = ""
    about: str = ""
    version: str = "version"
    known_by: str = ""
    checks_model: bool = False
    guides: Mapping[str, Any] = field(default_factory=dict)
    silently: str = ""


VALUE = object()
"""The place of a guide's schema or text."""
_ANY_OBJECT = {"type": "object"}


def _routes(*names: str, **paths: str) -> dict[str, str]:
    return {f"/v1/{name}": paths.get(name, "") for name in ("chat/completions", "completions", *names)}


DIALECTS: Mapping[str, Dialect] = {
    "openai": Dialect(
        "OpenAI",
        owner="openai",
        paths=_routes("embeddings", "responses"),
        guides={"regex": None, "ebnf": None},
        silently="An answer that was left is generated to its end, and billed.",
    ),
    "vllm": Dialect(
        "vLLM",
        owner="vllm",
        paths=_routes(
            *("embeddings", "rerank", "classify", "responses", "tokenize"), classify="/classify", tokenize="/tokenize"
        ),
        health="/health",
        about="/version",
        checks_model=True,
        guides={"regex": {"structured_outputs": {"regex": VALUE}}, "ebnf": {"structured_outputs": {"grammar": VALUE}}},
        silently="Unknown fields are ignored.",
    ),
    "sglang": Dialect(
        "SGLang",
        owner="sglang",
        paths=_routes("embeddings", "rerank", "responses"),
        health="/health",
        about="/server_info",
        checks_model=True,
        guides={"regex": {"regex": VALUE}, "ebnf": {"ebnf": VALUE}},
        silently="Unknown fields are ignored.",
    ),
    "tgi": Dialect(
        "Text Generation Inference",
        paths=_routes(),
        health="/health",
        about="/info",
        known_by="max_concurrent_requests",
        guides={
            "json_object": {"response_format": {"type": "json", "value": _ANY_OBJECT}},
            "json_schema": {"response_format": {"type": "json", "value": VALUE}},
            "regex": {"response_format": {"type": "regex", "value": VALUE}},
            "ebnf": None,
        },
        silently="The name of the model, `n` and `logit_bias` are ignored; `presence_penalty` becomes a repetition"
        " penalty.",
    ),
    "llama.cpp": Dialect(
        "llama.cpp",
        owner="llamacpp",
        paths=_routes("embeddings", "rerank"),
        health="/health",
        about="/props",
        version="build_info",
        known_by="default_generation_settings",
        guides={
            "json_object text": {"json_schema": _ANY_OBJECT},
            "json_schema": {"response_format": {"type": "json_object", "schema": VALUE}},
            "json_schema text": {"json_schema": VALUE},
            "regex": None,
            "ebnf": {"grammar": VALUE},
        },
        silently="The name of the model and unknown fields are ignored, and tools by a model whose template has none.",
    ),
    "ollama": Dialect(
        "Ollama",
        owner="library",
        paths=_routes("embeddings"),
        health="/api/version",
        about="/api/version",
        known_by="version",
        guides={"regex": None, "ebnf": None},
        silently="Unknown fields are ignored, and a prompt over the context's length is cut.",
    ),
    "trtllm": Dialect(
        "trtllm-serve",
        owner="tensorrt_llm",
        paths=_routes("embeddings", "responses"),
        health="/health",
        about="/version",
        guides={"json_schema": {"response_format": {"type": "json", "schema": VALUE}}},
        silently="The name of the model is ignored.",
    ),
    "ovms": Dialect(
        "OpenVINO Model Server",
        owner="OVMS",
        paths=_routes("embeddings", "rerank", "responses"),
        health="/v2/health/ready",
        about="/v2",
        checks_model=True,
        guides={
            "json_object": {"response_format": {"type": "json_schema", "json_schema": {"schema": _ANY_OBJECT}}},
            "regex": None,
            "ebnf": None,
        },
        silently="A schema that it can't compile is ignored; streams have no log probabilities and show the stop text.",
    ),
    "inflight": Dialect(
        "inflight",
        owner="inflight",
        paths=_routes("embeddings", "rerank", "classify", "translate", "responses", "tokenize", tokenize="/tokenize"),
        health="/ready",
        about="/version",
        checks_model=True,
    ),
    "other": Dialect(
        "another server",
        paths=_routes("embeddings", "rerank"),
        guides={"regex": None, "ebnf": None},
        silently="Unknown: what it does with a field that OpenAI does not have.",
    ),
}

FIELDS: Mapping[str, tuple[str, ...]] = {
    name: tuple(cells.split())
    for name, cells in {
        #                       openai                vllm sglang tgi  llama.cpp      ollama trtllm ovms inflight other
        "max_tokens":          "max_completion_tokens yes  yes    yes  yes            yes    yes    yes  yes      yes",
        "seed":                "yes                   yes  yes    yes  yes            yes    yes    yes  yes      yes",
        "stop":                "yes                   yes  yes    yes  yes            yes    yes    yes  yes      yes",
        "presence_penalty":    "yes                   yes  yes    no   yes            yes    yes    yes  yes      yes",
        "frequency_penalty":   "yes                   yes  yes    yes  yes            yes    yes    yes  yes      yes",
        "repetition_penalty":  "no                    yes  yes    text repeat_penalty no     yes    yes  yes      no",
        "top_k":               "no                    yes  yes    no   yes            no     yes    yes  yes      no",
        "min_p":               "no                    yes  yes    no   yes            no     yes    yes  yes      no",
        "min_tokens":          "no                    yes  yes    no   no             no     yes    no   yes      no",
        "ignore_eos":          "no                    yes  yes    no   yes            no     yes    yes  yes      no",
        "stop_token_ids":      "no                    yes  yes    no   no             no     yes    no   yes      no",
        "bad_words":           "no                    yes  no     no   no             no     no     no   yes      no",
        "allowed_token_ids":   "no                    yes  no     no   no             no     no     no   yes      no",
        "logit_bias":          "yes                   yes  yes    no   yes            no     yes    no   yes      yes",
        "n":                   "yes                   yes  yes    no   no             no     yes    yes  yes      yes",
        "best_of":             "text                  no   no     no   no             no     no     text yes      no",
        "logprobs":            "yes                   yes  yes    chat yes            yes    yes    yes  yes      yes",
        "top_logprobs":        "chat                  chat chat   chat chat           chat   chat   no   yes      chat",
        "prompt_logprobs":     "no                    yes  no     no   no             no     no     no   yes      no",
        "echo":                "text                  text text   no   no             no     text   text yes      no",
        "suffix":              "text                  no   no     no   no             text   no     no   yes      no",
        "response_format":     "chat                  yes  yes    chat yes            chat   yes    chat yes      chat",
        "tools":               "chat                  chat chat   chat chat           chat   chat   chat yes      chat",
        "tool_choice":         "chat                  chat chat   chat chat           no     chat   chat yes      chat",
        "parallel_tool_calls": "chat                  chat chat   no   chat           no     no     no   yes      chat",
        "chat_template_kwargs":"no                    chat chat   no   chat           no     chat   chat yes      no",
        "reasoning_effort":    "chat                  chat chat   no   chat           chat   no     no   yes      chat",
        "priority":            "no                    no   no     no   no             no     no     no   yes      no",
        "service_tier":        "yes                   no   no     no   no             no     no     no   yes      no",
        "dimensions":          "yes                   yes  yes    no   no             yes    no     no   yes      yes",
        "encoding_format":     "yes                   yes  yes    no   yes            yes    yes    yes  yes      yes",
        "input_type":          "no                    no   no     no   no             no     no     no   yes      no",
        "truncate":            "no                    no   no     no   no             no     no     no   yes      no",
        "return_errors":       "no                    no   no     no   no             no     no     no   yes      no",
    }.items()
}  # fmt: skip
"""For each dialect whether it has the field, only in a `chat` or for a `text`, or its name for the field."""

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "echo": (False,),
    "tool_choice": ("auto",),
    "parallel_tool_calls": (True,),
    "priority": (0,),
    "service_tier": ("auto", "default"),
    "encoding_format": ("float", "base64"),  # the answer shows which it is
    "truncate": (False,),
    "return_errors": (False, True),  # answers of other servers have no errors beside values
}
"""Values that change nothing, which are left out for a server that lacks the field."""


def adapted(name: str, route: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a request as servers of the dialect spell it; null fields are left out.

    Raises InflightError `unsupported_input` that names the field that the server does not have or would ignore.
    """
    dialect = DIALECTS[name]
    if name == "inflight":
        return dict(body)  # it refuses by name what it does not support
    if route not in dialect.paths:
        raise _unsupported(dialect, f"the route {route}", "use a server that has it")
    given = {key: value for key, value in body.items() if value is not None}
    if "max_completion_tokens" in given:  # the same field by its two names
        given.setdefault("max_tokens", given.pop("max_completion_tokens"))
    guide = given.pop("response_format", None)
    fields: dict[str, Any] = {}
    for key, value in given.items():
        if (spelt := _spelling(name, route, key)) is not None:
            fields[spelt] = value
        elif value not in ("", [], {}, *_NEUTRAL.get(key, ())):
            raise _unsupported(dialect, key + _where(name, route, key), "leave it out")
    if isinstance(fields.get("stop"), str):
        fields["stop"] = [fields["stop"]]  # some servers take only a list
    if route == COMPLETIONS and fields.get("logprobs") == 0:
        fields["logprobs"] = 1  # most servers take 0 for none
    return fields if guide is None else {**fields, **_guided(name, route, guide)}


def _spelling(name: str, route: str, key: str) -> str | None:
    """Return the dialect's name of a field; None if it lacks the field on this route."""
    cell = _cell(name, key)
    if cell in ("chat", "text"):
        return None if route == {"chat": COMPLETIONS, "text": CHAT}[cell] else key
    if cell == "no":
        return None
    return key if cell == "yes" or (cell == "max_completion_tokens" and route != CHAT) else cell


def _cell(name: str, key: str) -> str:
    return FIELDS[key][list(DIALECTS).index(name)] if key in FIELDS else "yes"


def _where(name: str, route: str, key: str) -> str:
    return f" on {route}" if _cell(name, key) in ("chat", "text") else ""


def _guided(name: str, route: str, guide: Any) -> dict[str, Any]:
    """Return the fields for a `response_format`."""
    kind = str(guide.get("type")) if isinstance(guide, Mapping) else ""
    if kind == "text":
        return {}
    dialect = DIALECTS[name]
    if _spelling(name, route, "response_format") is None:
        raise _unsupported(dialect, f"response_format on {route}", "leave it out")
    place = f"{kind} text" if route == COMPLETIONS and f"{kind} text" in dialect.guides else kind
    if place not in dialect.guides:
        return {"response_format": guide}
    if (template := dialect.guides[place]) is None:
        raise _unsupported(dialect, f"response_format of type {kind}", "send a json_schema, or leave it out")
    value = guide.get(kind)
    if kind == "json_schema":
        value = value.get("schema") if isinstance(value, Mapping) else None
        if not isinstance(value, Mapping):
            raise InflightError(
                "response_format of type json_schema needs an object `json_schema` with the object `schema`; add it",
                "invalid_parameter",
            )
    filled: dict[str, Any] = _filled(template, value)
    return filled


def _filled(template: Any, value: Any) -> Any:
    if template is VALUE:
        return value
    return {key: _filled(each, value) for key, each in template.items()} if isinstance(template, dict) else template


def _unsupported(dialect: Dialect, what: str, remedy: str) -> InflightError:
    return InflightError(f"{dialect.title} does not support {what}; {remedy}", "unsupported_input")


def validate_dialect(name: str) -> str:
    """Return the name of a dialect. Raises InflightError `invalid_parameter` for an unknown one."""
    if name not in DIALECTS:
        raise InflightError(
            f"the dialect {shorten(name)} is unknown; it must be one of {', '.join(DIALECTS)}", "invalid_parameter"
        )
    return name


def route_path(name: str, route: str, api: str) -> str:
    """Return the path of a route of the API at the path `api`, such as /v1."""
    return DIALECTS[name].paths.get(route) or api + route.removeprefix("/v1")
