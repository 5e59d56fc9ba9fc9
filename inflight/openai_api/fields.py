"""What each field of a request body is: its type and bounds, and whether it is honoured, refused, or without effect.

The parsers, /openapi.json and docs/gateway-fields.md take what they need from these tables. A field that is in no table
is refused as unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from inflight_client.sampling import PARAMETERS

MAX_TOOLS = 128
MAX_CHOICES = 128  # prompts times `n`
MAX_STOPS = 16
MAX_BAD_WORDS = 256
MAX_WORD_LENGTH = 1024  # characters of a text of stop or bad_words
MAX_BIAS = 100
MAX_TEXTS = 16_384  # of a request to an encoder, so that its response has a bound
_MAX_TOP_LOGPROBS = 20
_LARGEST_INT32 = 2**31 - 1


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
    schema: Mapping[str, Any] = field(default_factory=dict)
    """Its type and bounds, as JSON schema."""
    is_sampling: bool = False
    """Whether its value is that of the sampling parameter of the same name."""


NUMBER, INTEGER, TEXT, FLAG = {"type": "number"}, {"type": "integer"}, {"type": "string"}, {"type": "boolean"}
OBJECT, LIST = {"type": "object"}, {"type": "array"}
_TEXTS_OR_IDS = {"anyOf": [TEXT, LIST]}
_MESSAGE = OBJECT | {
    "required": ["role"],
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
        "content": {"anyOf": [TEXT, LIST | {"items": OBJECT}, {"type": "null"}]},
    },
}


def _whole(low: int, high: int = _LARGEST_INT32) -> dict[str, Any]:
    return INTEGER | {"minimum": low, "maximum": high}


def _texts(most: int) -> dict[str, Any]:
    word = TEXT | {"maxLength": MAX_WORD_LENGTH}
    return {"anyOf": [word, LIST | {"items": word, "maxItems": most}]}


def _honoured(note: str, schema: Mapping[str, Any] | None = None) -> Field:
    """In the note, `{bounds}` are those of the schema."""
    schema = schema or {}
    if "{bounds}" in note:
        low, high = schema["minimum"], schema["maximum"]
        note = note.replace("{bounds}", f"from {low:g} on" if high == _LARGEST_INT32 else f"{low:g} to {high:g}")
    return Field(Tier.HONOURED, note, schema=schema)


def _sampling(name: str, note: str, schema: Mapping[str, Any] | None = None) -> dict[str, Field]:
    """Return the field of a sampling parameter, by default with its bounds."""
    if schema is None:
        parameter = PARAMETERS[name]
        kind = INTEGER if parameter.whole else NUMBER
        schema = kind | {"minimum": parameter.low, "maximum": parameter.high}
    return {name: replace(_honoured(note, schema), is_sampling=True)}


def _refused(note: str, *neutral: Any) -> Field:
    return Field(Tier.REFUSED, note, neutral)


def _no_effect(note: str) -> Field:
    return Field(Tier.NO_EFFECT, note)


_FORMAT = "send `response_format`"
_TEXT = "an answer's text has no special tokens"
_BEAMS = "the gateway's answers are sampled"
_NOT_OURS: dict[str, Field] = {
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
    **dict.fromkeys(
        ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"), _refused(_FORMAT)
    ),
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

_UNSTORED = {
    **dict.fromkeys(("user", "safety_identifier"), _no_effect("the tenant comes from the API key")),
    **dict.fromkeys(
        ("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options"),
        _no_effect("prefixes are cached automatically"),
    ),
    "store": _refused("nothing is stored", False),
}
_COMMON: dict[str, Field] = _NOT_OURS | {
    "model": _honoured("must be a served model", TEXT),
    "max_tokens": _honoured("{bounds}", _whole(1)),
    **_sampling("temperature", "{bounds}, by default the model's; 0 is greedy", NUMBER | {"minimum": 0, "maximum": 2}),
    **_sampling("top_p", "{bounds}"),
    "n": _honoured("{bounds}; choice i has the seed + i", _whole(1, 16)),
    "stop": _honoured(f"a text, or up to {MAX_STOPS} texts", _texts(MAX_STOPS)),
    **_sampling("seed", "answers repeat on the same engine, hardware and precision as far as batching allows", INTEGER),
    **_sampling("presence_penalty", "{bounds}"),
    **_sampling("frequency_penalty", "{bounds}"),
    "logprobs": _honoured("of the model's own distribution, before temperature", FLAG),
    "stream": _honoured("server-sent events", FLAG),
    "stream_options": _honoured(
        "`include_usage`; `include_obfuscation` and vLLM's `continuous_usage_stats` have no effect; only with `stream`",
        OBJECT,
    ),
    "response_format": _honoured("`text`, `json_object`, `json_schema`; also `regex` and `ebnf`", OBJECT),
    "service_tier": _honoured(
        "`priority` goes first in the queue, `flex` last; `auto`, `default`",
        {"enum": ["auto", "default", "priority", "flex"]},
    ),
    **_sampling("top_k", "not OpenAI's: 0 or -1 is off", _whole(-1)),
    **_sampling("min_tokens", "not OpenAI's"),
    **_sampling("repetition_penalty", "not OpenAI's"),
    "ignore_eos": _honoured("not OpenAI's: generate until `max_tokens`", FLAG),
    "logit_bias": _honoured(
        f"-{MAX_BIAS} to {MAX_BIAS} by token id, for up to 1,024 ids",
        OBJECT | {"additionalProperties": NUMBER | {"minimum": -MAX_BIAS, "maximum": MAX_BIAS}},
    ),
    **_sampling("min_p", "not OpenAI's: {bounds}, the least share of the likeliest token's probability"),
    **_sampling("bad_words", f"not OpenAI's: not in the answer; up to {MAX_BAD_WORDS} texts", _texts(MAX_BAD_WORDS)),
    **_sampling("allowed_token_ids", "not OpenAI's: the only ids that the answer may have", LIST | {"items": INTEGER}),
    "prompt_logprobs": _honoured(
        "vLLM's: of the prompt's tokens, with {bounds} of the likeliest; not with `stream`",
        _whole(0, _MAX_TOP_LOGPROBS),
    ),
    "metadata": _no_effect("nothing is stored"),
    **_UNSTORED,
}

CHAT_FIELDS: dict[str, Field] = _COMMON | {
    "messages": _honoured(
        "texts and text parts; roles are those of the model's template; `developer` is `system`",
        LIST | {"items": _MESSAGE, "minItems": 1},
    ),
    "max_completion_tokens": _honoured("the new name of `max_tokens`", _whole(1)),
    "tools": _honoured(f"up to {MAX_TOOLS} functions", LIST | {"items": OBJECT, "maxItems": MAX_TOOLS}),
    "tool_choice": _honoured("`none`, `auto`, `required`, or a function by name"),
    "parallel_tool_calls": _honoured("false: at most one call", FLAG),
    "chat_template_kwargs": _honoured(
        "not OpenAI's: what the model's template reads, such as `enable_thinking`", OBJECT
    ),
    "add_generation_prompt": _honoured("not OpenAI's: as in `chat_template_kwargs`", FLAG),
    "continue_final_message": _honoured("not OpenAI's: continue the last message", FLAG),
    "top_logprobs": _honoured(
        "{bounds} of the likeliest tokens at each place; needs `logprobs`", _whole(0, _MAX_TOP_LOGPROBS)
    ),
    "reasoning_effort": _honoured("reaches the model's template; without effect if that does not read it", TEXT),
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
    "prompt": _honoured(f"a text, texts, token ids, or lists of token ids; up to {MAX_CHOICES}", _TEXTS_OR_IDS),
    "echo": _honoured(
        "the prompt before the answer; with `logprobs` those of its tokens too, but not with `stream`, and with"
        " `max_tokens` 1 that of the token that ends the answer",
        FLAG,
    ),
    "logprobs": _honoured(
        "{bounds} of the likeliest tokens, and the chosen one; of the model's own distribution",
        _whole(0, _MAX_TOP_LOGPROBS),
    ),
}

_NOT_OPENAIS_RESPONSES = ("seed", "chat_template_kwargs", "stop", "presence_penalty", "frequency_penalty")
AS_IN_CHAT = (
    *("model", "temperature", "top_p", "stream", "parallel_tool_calls", "service_tier", "top_k", "min_p", "min_tokens"),
    *("repetition_penalty", "ignore_eos", "logit_bias", "bad_words", "allowed_token_ids", *_NOT_OPENAIS_RESPONSES),
)
"""The fields of the Responses API that a chat completion has too."""
_AS_IN_CHAT_NOTE = "not OpenAI's: as in chat completions"
RESPONSES_FIELDS: dict[str, Field] = _NOT_OURS | {
    **{name: CHAT_FIELDS[name] for name in (*AS_IN_CHAT, "tools", "tool_choice")},
    **{name: replace(CHAT_FIELDS[name], note=_AS_IN_CHAT_NOTE) for name in _NOT_OPENAIS_RESPONSES},
    "input": _honoured("a text, or messages, function calls and their outputs", _TEXTS_OR_IDS),
    "instructions": _honoured("the system message", TEXT),
    "max_output_tokens": _honoured("{bounds}", _whole(1)),
    "stream_options": _honoured("validated, otherwise ignored", OBJECT),
    "text": _honoured("`format`: `text`, `json_object`, `json_schema`", OBJECT),
    "reasoning": _honoured(
        "`effort` reaches the model's template as `reasoning_effort`; the rest has no effect", OBJECT
    ),
    "metadata": _honoured("is in the answer", OBJECT),
    "previous_response_id": _refused("nothing is stored; send the conversation"),
    "conversation": _refused("nothing is stored; send the conversation"),
    "background": _refused("nothing is stored", False),
    "truncation": _refused("a conversation is never shortened", "disabled"),
    "top_logprobs": _refused("send a chat completion", 0),
    "prompt": _refused("prompts are not stored here; send input"),
    "max_tool_calls": _refused("there are no tools that the gateway runs"),
    "context_management": _refused("a conversation is never shortened", []),
    "moderation": _refused("no moderation model is served"),
    "include": _no_effect("there is nothing else to include"),
    **_UNSTORED,
}

_ENCODERS: dict[str, Field] = {
    "model": _honoured("a served model for this task; may be left out if there is only one", TEXT),
    "priority": _honoured(
        "not OpenAI's: {bounds}, higher goes first, default 0; vLLM and Cohere count down", _whole(-1000, 1000)
    ),
    "return_errors": _honoured("not OpenAI's: texts that fail have an `error`, and the others are answered", FLAG),
    "user": _UNSTORED["user"],
}
_TEXTS: dict[str, Field] = _ENCODERS | {
    "truncate": _honoured(
        "not OpenAI's: true or `END` cuts long texts at the model's limit; false or `NONE`, the default, refuses them",
        {"anyOf": [FLAG, {"enum": ["NONE", "END"]}]},
    ),
    "truncate_prompt_tokens": _honoured("vLLM's: only -1, which is `truncate`", {"const": -1}),
    "add_special_tokens": _refused("texts get the model's special tokens, token ids none", True),
    "input": _honoured(f"a text, texts, token ids, or lists of token ids; up to {MAX_TEXTS:,}", _TEXTS_OR_IDS),
}

EMBEDDING_FIELDS: dict[str, Field] = _TEXTS | {
    "encoding_format": _honoured(
        "`float`, the default, or `base64`: little-endian float32", {"enum": ["float", "base64"]}
    ),
    "dimensions": _honoured(
        "the first values of each vector, normalized again if the model normalizes; only lengths that the model was"
        " trained for (`matryoshka_dimensions` or `is_matryoshka` of its config.json)",
        _whole(1),
    ),
    "input_type": _honoured("not OpenAI's: `query`, `document`, `passage` or another prompt of the model", TEXT),
    "normalize": _refused("the model's own setting holds", True),
    "output_dimension": _refused("pass `dimensions`"),
    "output_dtype": _refused("pass `encoding_format`", "float"),
    "embedding_types": _refused("pass `encoding_format`", ["float"]),
    "late_chunking": _refused("texts are computed one by one", False),
}

RERANK_FIELDS: dict[str, Field] = _ENCODERS | {
    "query": _honoured("a text", TEXT),
    "documents": _honoured(
        f"texts, or objects with a `text`; up to {MAX_TEXTS:,}",
        LIST | {"items": {"anyOf": [TEXT, OBJECT]}, "minItems": 1, "maxItems": MAX_TEXTS},
    ),
    "top_n": _honoured("how many of the best are returned, default all", _whole(0)),
    "return_documents": _honoured("whether each result has its `document`, default false", FLAG),
    "truncate": _honoured("true, the default, cuts long documents at the model's limit; false refuses them", FLAG),
    "max_tokens_per_doc": _honoured("only from the model's limit on, at which documents are cut", _whole(1)),
    "rank_fields": _refused("documents are ranked by their text", ["text"]),
    "max_chunks_per_doc": _refused("documents are not split", 1),
    "raw_scores": _refused("scores are from 0 to 1", False),
}

CLASSIFY_FIELDS = _TEXTS

TEXT2TEXT_FIELDS: dict[str, Field] = _ENCODERS | {
    "input": _honoured(
        f"a text or texts; up to {MAX_TEXTS:,}", {"anyOf": [TEXT, LIST | {"items": TEXT, "maxItems": MAX_TEXTS}]}
    ),
    "target_language": _honoured("a code that the model knows, or the name of one of its prompts", TEXT),
    "source_language": _honoured("of the texts, by default that of the model's tokenizer", TEXT),
    "max_tokens": _honoured("of each answer, by default the model's own limit", _whole(1)),
    "beam_width": _honoured("{bounds}, by default the model's own, as are the next two", _whole(1, 32)),
    "length_penalty": _honoured("{bounds}; higher for longer answers", NUMBER | {"minimum": -10, "maximum": 10}),
    "repetition_penalty": _honoured("{bounds}", NUMBER | {"minimum": 0.1, "maximum": 10}),
    "truncate": _TEXTS["truncate"],
}

_FORMATS = ["json", "text", "srt", "vtt", "verbose_json"]
TRANSLATION_FIELDS: dict[str, Field] = {
    "model": _honoured("a served model for speech; may be left out if there is only one", TEXT),
    "file": _honoured("wav, flac, ogg or mp3, by its content; `--max-audio-bytes` and `--max-audio-seconds`", TEXT),
    "prompt": _honoured(
        "words that may come, such as names, and the style of the text; only its end is read if it is long",
        TEXT | {"maxLength": 100_000},
    ),
    "response_format": _honoured("`json`, `text`, `srt`, `vtt`, `verbose_json`", {"enum": _FORMATS}),
    "temperature": _honoured(
        "{bounds}; 0, the default, tries higher ones for poor text", NUMBER | {"minimum": 0, "maximum": 1}
    ),
    "beam_width": _honoured("not OpenAI's: {bounds}", _whole(1, 16)),
    "priority": _ENCODERS["priority"],
    "user": _UNSTORED["user"],
}
TRANSCRIPTION_FIELDS: dict[str, Field] = TRANSLATION_FIELDS | {
    "language": _honoured("its code, such as `en`; by default that of the first speech", TEXT),
    "timestamp_granularities": _honoured(
        "`segment`, the default, and `word`; only with `verbose_json`", LIST | {"items": {"enum": ["word", "segment"]}}
    ),
    "stream": _honoured("server-sent events, one for each segment; only with `json` and `text`", FLAG),
    "chunking_strategy": _refused("audio is always cut in its pauses", "auto"),
    "include": _refused("transcriptions have no log probabilities of tokens", []),
    "keywords": _refused("pass `prompt`", []),
    "languages": _refused("pass `language`", []),
    "known_speaker_names": _refused("speakers are not distinguished", []),
    "known_speaker_references": _refused("speakers are not distinguished", []),
}
