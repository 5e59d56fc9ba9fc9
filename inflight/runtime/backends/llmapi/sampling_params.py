"""Translates a request to the LLM API's SamplingParams, and refuses what the engine can't do."""

from __future__ import annotations

import json
import secrets
from typing import Any

from inflight.common.request_error import RequestError
from inflight.runtime.backends.llmapi.library import Sampler
from inflight.runtime.backends.llmapi.settings import LlmApiSettings
from inflight.runtime.engine.request_values import check_sampling
from inflight.runtime.messages import DecodingGuide, GenerationRequest, GuideType, SamplingConfig

_GUIDES = {GuideType.JSON_SCHEMA: "json", GuideType.REGEX: "regex", GuideType.EBNF_GRAMMAR: "grammar"}


class SamplingParamsBuilder:
    """Builds arguments that 1.2 and later versions have in common, without those that equal the defaults."""

    def __init__(self, settings: LlmApiSettings, sampler: Sampler) -> None:
        self._settings = settings
        self._sampler = sampler

    def end_ids_for(self, request: GenerationRequest) -> tuple[int, ...]:
        """Return the request's end tokens; with a guide and without any, the model's own.

        An answer without end tokens would continue unguided after the end of the guide.
        """
        return request.end_ids or (self._settings.end_ids if request.guide is not None else ())

    def build(self, request: GenerationRequest) -> dict[str, Any]:
        """Return the arguments, with `guide` and `bad_words` as plain values for `LlmApiLibrary.sampling_params`."""
        ends = self.end_ids_for(request)
        end_id = (*ends, *self._settings.end_ids, 0)[0]  # without one, the library would use the tokenizer's
        words: dict[str, Any] = {
            "max_tokens": request.max_tokens,
            "end_id": end_id,
            "pad_id": end_id,
            "ignore_eos": not ends,
            "detokenize": False,
        }
        if len(ends) > 1:
            words["stop_token_ids"] = list(ends[1:])
        if request.log_probs:
            words["logprobs"] = max(request.top_log_probs, 1)
        if request.logit_bias:
            words["embedding_bias"] = _dense(request.logit_bias, self._settings.vocabulary_size)
        if request.guide is not None:
            words["guide"] = _guide(request.guide)
        if request.bad_ids:
            words |= _bad_words(request.bad_ids)
        words |= _beams(request.sampling) if request.sampling.beam_width > 1 else _token_choice(request.sampling)
        return words | _penalties(request.sampling)

    def check(self, request: GenerationRequest) -> None:
        """Raise RequestError (`invalid_parameter` or `unsupported_input`) if this engine can't run the request."""
        check_sampling(request.sampling)
        self._check_beams(request.sampling)
        self._check_guide(request.guide)
        if not self._sampler.is_complete:
            self._check_sampler(request)

    def _check_beams(self, sampling: SamplingConfig) -> None:
        width = self._settings.beam_width
        if sampling.beam_width != width:
            raise RequestError(
                f"beam_width is {sampling.beam_width}, and the engine was built for {width}, which is the only width"
                f" that it takes; send {width}, or build it with another max_beam_width",
                "invalid_parameter",
            )
        if width > 1 and sampling.reshapes:
            raise RequestError(
                f"beam_width is {width}, and beam search doesn't support temperature, top_k and top_p; leave them out",
                "invalid_parameter",
            )

    def _check_guide(self, guide: DecodingGuide | None) -> None:
        if guide is None:
            return
        if not self._settings.guides:
            raise RequestError(
                "guided_decoding_guide_type is not supported by this engine, which was built without"
                " guided_decoding_backend; leave it out, or build the engine with it",
                "unsupported_input",
            )
        if guide.type is GuideType.JSON_SCHEMA:
            try:
                _check_schema(json.loads(guide.text, parse_constant=_no_number))
            except (ValueError, RecursionError) as error:
                why = "it is nested too deeply" if isinstance(error, RecursionError) else error
                raise RequestError(
                    f"guided_decoding_guide is not a JSON schema ({why}); fix it", "invalid_parameter"
                ) from None

    def _check_sampler(self, request: GenerationRequest) -> None:
        sampling = request.sampling
        for name, used in (
            ("repetition_penalty", sampling.repetition_penalty != 1),
            ("presence_penalty", sampling.presence_penalty != 0),
            ("frequency_penalty", sampling.frequency_penalty != 0),
            ("min_tokens", sampling.min_tokens > 1),
            ("bad_words_list", bool(request.bad_ids)),
            ("min_p", sampling.min_p > 0),
            ("seed", sampling.seed is not None and not sampling.greedy),
            ("return_log_probs", request.log_probs and not sampling.greedy),
        ):
            if used:
                raise RequestError(
                    f"{name} is not supported by this engine's sampler ({self._sampler.name} of TensorRT-LLM before"
                    " 1.3, which ignores it); leave it out, or build the engine with sampler_type TRTLLMSampler",
                    "unsupported_input",
                )


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _check_schema(schema: object) -> None:
    if not isinstance(schema, (dict, bool)):
        raise ValueError("it is neither an object nor true or false")


def _token_choice(sampling: SamplingConfig) -> dict[str, Any]:
    """Return the sampling arguments.

    The library samples if only a temperature is set, and uses one seed for all requests without one.
    """
    if sampling.greedy:
        return {"top_k": 1}
    filters = {"top_k": sampling.top_k, "top_p": sampling.top_p, "min_p": sampling.min_p}
    return {
        "temperature": 1.0 if sampling.temperature is None else sampling.temperature,
        **{name: value for name, value in filters.items() if value},
        "seed": secrets.randbits(63) if sampling.seed is None else sampling.seed,
    }


def _beams(sampling: SamplingConfig) -> dict[str, Any]:
    return {
        "use_beam_search": True,
        "n": sampling.beam_width,
        "best_of": sampling.beam_width,
        "length_penalty": sampling.length_penalty,
        "early_stopping": int(sampling.early_stopping),
    }


def _penalties(sampling: SamplingConfig) -> dict[str, Any]:
    values = {
        "repetition_penalty": sampling.repetition_penalty if sampling.repetition_penalty != 1 else 0,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "min_tokens": sampling.min_tokens if sampling.min_tokens > 1 else 0,
    }
    return {name: value for name, value in values.items() if value}


def _bad_words(words: tuple[tuple[int, ...], ...]) -> dict[str, Any]:
    single = [word[0] for word in words if len(word) == 1]
    longer = [word for word in words if len(word) > 1]
    return {**({"bad_token_ids": single} if single else {}), **({"bad_words": longer} if longer else {})}


def _dense(bias: tuple[tuple[int, float], ...], size: int) -> list[float]:
    values = [0.0] * size
    for token_id, value in bias:
        values[token_id] = value
    return values


def _guide(guide: DecodingGuide) -> dict[str, Any]:
    return {"json_object": True} if guide.type is GuideType.JSON else {_GUIDES[guide.type]: guide.text}
