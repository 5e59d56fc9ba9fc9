"""What each field of a request body does: honoured, refused, or accepted without effect.

docs/gateway-fields.md is generated from these tables. A field that is in no table is refused as unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from inflight_client.validation import is_int, shorten

from inflight.common.suggestions import nearest
from inflight.openai_api.errors import ApiError


class Tier(StrEnum):
    HONOURED = "honoured"
    REFUSED = "refused"
    NO_EFFECT = "no effect"


@dataclass(frozen=True)
class Field:
    """A field's tier. A refused field may have `neutral` values, which ask for nothing; null always does."""

    tier: Tier
    note: str = ""
    neutral: tuple[Any, ...] = ()


_LARGEST_EXACT = 2**53


def _honoured(note: str) -> Field:
    return Field(Tier.HONOURED, note)


def _refused(note: str, *neutral: Any) -> Field:
    return Field(Tier.REFUSED, note, neutral)


def _no_effect(note: str) -> Field:
    return Field(Tier.NO_EFFECT, note)


_FORMAT = "send `response_format`"
_TEXT = "an answer's text has no special tokens"
_BEAMS = "the gateway's answers are sampled"
NOT_OURS: dict[str, Field] = {
    "typical_p": _refused("the engine has no such limit", 1),
    "use_beam_search": _refused(_BEAMS, False),
    "length_penalty": _refused(_BEAMS, 1),
    "early_stopping": _refused(_BEAMS, False),
    "best_of": _refused("only the value of `n` is taken"),
    "stop_token_ids": _refused("pass `stop`", []),
    "skip_special_tokens": _refused(_TEXT, True),
    "spaces_between_special_tokens": _refused(_TEXT, True),
    "include_stop_str_in_output": _refused("an answer ends before the text of `stop`", False),
    "return_token_ids": _refused("send the answer to /tokenize", False),
    "return_tokens_as_token_ids": _refused("send the answer to /tokenize", False),
    "prompt_logprobs": _refused("send a completion or chat completion"),
    "echo": _refused("only completions repeat the prompt", False),
    "suffix": _refused("the engine only continues texts", ""),
    "priority": _refused("pass `service_tier`", 0),
    "guided_json": _refused(_FORMAT),
    "guided_regex": _refused(_FORMAT),
    "guided_choice": _refused(_FORMAT),
    "guided_grammar": _refused(_FORMAT),
    "structured_outputs": _refused(_FORMAT),
    "format": _refused(_FORMAT, ""),
    "options": _refused("send its fields beside the others", {}),
    "extra_body": _refused("send its fields beside the others"),
    "keep_alive": _refused("the model stays loaded"),
    "num_ctx": _refused("the engine's longest sequence is set when it is built"),
    **dict.fromkeys(("num_predict", "n_predict", "max_new_tokens"), _refused("pass `max_tokens`")),
    **dict.fromkeys(("think", "thinking", "enable_thinking"), _refused("pass `chat_template_kwargs`")),
    "repeat_penalty": _refused("pass `repetition_penalty`", 1),
    "reasoning": _refused("pass `reasoning_effort`"),
    "prompt_token_ids": _refused("pass `prompt`"),
}
"""Of vLLM, TGI and Ollama, whose clients send many of these with the values that ask for nothing."""

_COMMON: dict[str, Field] = NOT_OURS | {
    "model": _honoured("must be a served model"),
    "max_tokens": _honoured("from 1 on"),
    "temperature": _honoured("0 to 2, by default the model's; 0 is greedy"),
    "top_p": _honoured("0 to 1"),
    "n": _honoured("1 to 16; choice i has the seed + i"),
    "stop": _honoured("a text, or up to 16 texts"),
    "seed": _honoured("answers repeat on the same engine, hardware and precision as far as batching allows"),
    "presence_penalty": _honoured("-2 to 2"),
    "frequency_penalty": _honoured("-2 to 2"),
    "logprobs": _honoured("of the model's own distribution, before temperature"),
    "stream": _honoured("server-sent events"),
    "stream_options": _honoured(
        "`include_usage`; `include_obfuscation` and vLLM's `continuous_usage_stats` have no effect; only with `stream`"
    ),
    "response_format": _honoured("`text`, `json_object`, `json_schema`; also `regex` and `ebnf`"),
    "service_tier": _honoured("`priority` goes first in the queue, `flex` last; `auto`, `default`"),
    "top_k": _honoured("not OpenAI's: 0 or -1 is off"),
    "min_tokens": _honoured("not OpenAI's"),
    "repetition_penalty": _honoured("not OpenAI's"),
    "ignore_eos": _honoured("not OpenAI's: generate until `max_tokens`"),
    "logit_bias": _honoured("-100 to 100 by token id, for up to 1,024 ids"),
    "min_p": _honoured("not OpenAI's: 0 to 1, the least share of the likeliest token's probability"),
    "bad_words": _honoured("not OpenAI's: texts that the answer must not have"),
    "allowed_token_ids": _honoured("not OpenAI's: the only ids that the answer may have"),
    "prompt_logprobs": _honoured("vLLM's: of the prompt's tokens, with 0 to 20 of the likeliest; not with `stream`"),
    "store": _refused("nothing is stored", False),
    "user": _no_effect("the tenant comes from the API key"),
    "metadata": _no_effect("nothing is stored"),
    "safety_identifier": _no_effect("the tenant comes from the API key"),
    "prompt_cache_key": _no_effect("prefixes are cached automatically"),
    "prompt_cache_retention": _no_effect("prefixes are cached automatically"),
    "prompt_cache_options": _no_effect("prefixes are cached automatically"),
}

CHAT_FIELDS: dict[str, Field] = _COMMON | {
    "messages": _honoured("texts and text parts; roles are those of the model's template; `developer` is `system`"),
    "max_completion_tokens": _honoured("the new name of `max_tokens`"),
    "tools": _honoured("up to 128 functions"),
    "tool_choice": _honoured("`none`, `auto`, `required`, or a function by name"),
    "parallel_tool_calls": _honoured("false: at most one call"),
    "chat_template_kwargs": _honoured("not OpenAI's: what the model's template reads, such as `enable_thinking`"),
    "add_generation_prompt": _honoured("not OpenAI's: as in `chat_template_kwargs`"),
    "continue_final_message": _honoured("not OpenAI's: continue the last message"),
    "top_logprobs": _honoured("0 to 20 of the likeliest tokens at each place; needs `logprobs`"),
    "reasoning_effort": _honoured("reaches the model's template; without effect if that does not read it"),
    "verbosity": _no_effect("open models have no such setting"),
    "modalities": _refused("text only", ["text"]),
    "audio": _refused("text only"),
    "prediction": _refused("not supported by the engine"),
    "web_search_options": _refused("the gateway searches nothing"),
    "moderation": _refused("no moderation model is served"),
    "functions": _refused("pass `tools`", []),
    "function_call": _refused("pass `tool_choice`", "none", "auto"),
    "chat_template": _refused("a template is code of the deployment"),
}

COMPLETION_FIELDS: dict[str, Field] = _COMMON | {
    "prompt": _honoured("a text, texts, token ids, or lists of token ids; up to 128"),
    "echo": _honoured("the prompt before the answer; with `logprobs` those of its tokens too, but not with `stream`"),
    "logprobs": _honoured("0 to 20 of the likeliest tokens, and the chosen one; of the model's own distribution"),
}

_ENCODERS: dict[str, Field] = {
    "model": _honoured("a served model for this task; may be left out if there is only one"),
    "priority": _honoured("not OpenAI's: -1000 to 1000, higher goes first, default 0; vLLM and Cohere count down"),
    "return_errors": _honoured("not OpenAI's: texts that fail have an `error`, and the others are answered"),
    "user": _no_effect("the tenant comes from the API key"),
}
_CUTS = {
    "truncate": _honoured(
        "not OpenAI's: true or `END` cuts long texts at the model's limit; false or `NONE`, the default, refuses them"
    ),
    "truncate_prompt_tokens": _honoured("vLLM's: only -1, which is `truncate`"),
    "add_special_tokens": _refused("texts get the model's special tokens, token ids none", True),
}

EMBEDDING_FIELDS: dict[str, Field] = (
    _ENCODERS
    | _CUTS
    | {
        "input": _honoured("a text, texts, token ids, or lists of token ids; up to 16,384"),
        "encoding_format": _honoured("`float`, the default, or `base64`: little-endian float32"),
        "dimensions": _honoured(
            "the first values of each vector, normalized again if the model normalizes; only lengths that the model was"
            " trained for (`matryoshka_dimensions` or `is_matryoshka` of its config.json)"
        ),
        "input_type": _honoured("not OpenAI's: `query`, `document`, `passage` or another prompt of the model"),
        "normalize": _refused("the model's own setting holds", True),
        "output_dimension": _refused("pass `dimensions`"),
        "output_dtype": _refused("pass `encoding_format`", "float"),
        "embedding_types": _refused("pass `encoding_format`", ["float"]),
        "late_chunking": _refused("texts are computed one by one", False),
    }
)

RERANK_FIELDS: dict[str, Field] = _ENCODERS | {
    "query": _honoured("a text"),
    "documents": _honoured("texts, or objects with a `text`; up to 16,384"),
    "top_n": _honoured("how many of the best are returned, default all"),
    "return_documents": _honoured("whether each result has its `document`, default false"),
    "truncate": _honoured("true, the default, cuts long documents at the model's limit; false refuses them"),
    "max_tokens_per_doc": _honoured("only from the model's limit on, at which documents are cut"),
    "rank_fields": _refused("documents are ranked by their text", ["text"]),
    "max_chunks_per_doc": _refused("documents are not split", 1),
    "raw_scores": _refused("scores are from 0 to 1", False),
}

CLASSIFY_FIELDS: dict[str, Field] = (
    _ENCODERS | _CUTS | {"input": _honoured("a text, texts, token ids, or lists of token ids; up to 16,384")}
)


_REQUIRED = ("messages", "prompt", "input", "documents", "query")
"""By all requests that have a field of that name."""


def _is_lacking(name: str, body: Mapping[str, Any], table: Mapping[str, Field]) -> bool:
    return name in table and table[name].tier is Tier.HONOURED and body.get(name) is None


def check_fields(body: Mapping[str, Any], table: Mapping[str, Field]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the fields that are not null, and the names of those without effect. Raises ApiError."""
    given: dict[str, Any] = {}
    no_effect = []
    for name, value in body.items():
        if value is None:
            continue
        field = table.get(name)
        if field is None:
            near = nearest(name[:80], (each for each in table if table[each].tier is not Tier.REFUSED), 0.7)
            missing = next((each for each in _REQUIRED if _is_lacking(each, body, table)), None)
            if missing is not None and (near in (None, missing)):
                raise ApiError(
                    f"the request has no {missing}, and its field {name[:80]!r} is unknown; rename it to {missing}",
                    "invalid_request",
                    missing,
                )
            step = f"did you mean {near!r}?" if near else "leave it out"
            raise ApiError(f"the field {name[:80]!r} is unknown; {step}", "unsupported_input", name[:80])
        if field.tier is Tier.REFUSED:
            if not any(_same(value, each) for each in field.neutral):
                raise ApiError(
                    f"{name} is {shorten(value)}, which is not supported ({field.note}); leave it out",
                    "unsupported_input",
                    name,
                )
        elif field.tier is Tier.NO_EFFECT:
            no_effect.append(name)
        else:
            given[name] = whole(value)
    return given, tuple(no_effect)


def whole(value: Any) -> Any:
    """Return a whole number that was written as a float, which JSON does not tell apart, as an integer."""
    is_whole = type(value) is float and value.is_integer() and abs(value) <= _LARGEST_EXACT
    return int(value) if is_whole else value


def _same(value: Any, neutral: Any) -> bool:
    if isinstance(value, bool) or isinstance(neutral, bool):
        return value is neutral
    return bool(value == neutral) and (isinstance(value, int | float) or type(value) is type(neutral))


class FieldReader:
    """Reads fields of simple types. Raises ApiError, which names the field."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.given = given

    def text(self, name: str) -> str:
        value = self.given.get(name)
        if not isinstance(value, str) or not value:
            what = f"the request has no {name}" if value is None else f"{name} is {shorten(value)}"
            raise ApiError(f"{what}; set it to a text", "invalid_request", name)
        return value

    def boolean(self, name: str, default: bool = False) -> bool:
        value = self.given.get(name, default)
        if not isinstance(value, bool):
            raise ApiError(f"{name} is {shorten(value)}; it must be true or false", "invalid_parameter", name)
        return value

    def integer(self, name: str, low: int, high: int, default: int) -> int:
        value = self.given.get(name, default)
        if not is_int(value) or not low <= value <= high:
            raise ApiError(
                f"{name} is {shorten(value)}; it must be a whole number from {low} to {high}", "invalid_parameter", name
            )
        return int(value)

    def mapping(self, name: str) -> Mapping[str, Any]:
        value = self.given.get(name, {})
        if not isinstance(value, Mapping):
            raise ApiError(f"{name} is {shorten(value)}; it must be an object", "invalid_parameter", name)
        return value
