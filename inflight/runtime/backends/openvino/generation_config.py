"""Translates a request to OpenVINO GenAI, and refuses what that library can't do.

A request that passes `check_request` never makes the pipeline raise: an error of its step() ends every request.
"""

from __future__ import annotations

import secrets
from dataclasses import replace

import openvino_genai

from inflight.runtime.backends.openvino.speculation import check_speculation, set_speculation
from inflight.runtime.engine.interface import EngineOptions
from inflight.runtime.engine.request_values import check_sampling
from inflight.runtime.messages import DecodingGuide, GenerationRequest, GuideType, RequestError, SamplingConfig

LOWEST_TEMPERATURE = 1e-4
"""Below it, scaled logits overflow 32 bits; at it, the likeliest token is chosen almost always."""


ANY_JSON = '{"anyOf": [{"type": "object"}, {"type": "array"}]}'
"""Upstream's `json` has no schema and accepts an object or an array."""


def check_request(request: GenerationRequest, options: EngineOptions) -> None:
    """Raise RequestError (`invalid_parameter`) for values and combinations that the library doesn't support."""
    sampling = request.sampling
    check_sampling(sampling)
    _check_prompt(request, options)
    check_speculation(request, options)
    if sampling.beam_width > 1:
        _check_beam_search(request, options)
    if request.guide is not None and sampling.min_tokens:
        raise _invalid_parameter(
            f"min_tokens is {sampling.min_tokens} beside guided_decoding_guide, which decides when the answer"
            " ends; leave min_tokens out"
        )


def _check_prompt(request: GenerationRequest, options: EngineOptions) -> None:
    tokens = len(request.prompt_ids)
    whole = not options.chunked_context and not options.draft_dir
    if whole and tokens > options.max_num_tokens:
        raise RequestError(
            f"the prompt has {tokens} tokens, and the engine computes whole prompts of at most"
            f" {options.max_num_tokens}; shorten the prompt",
            "prompt_too_long",
        )


def _check_beam_search(request: GenerationRequest, options: EngineOptions) -> None:
    """Check a beam search: the library uses the model's unmodified distribution, and computes all beams in one step."""
    sampling = request.sampling
    if sampling.beam_width > options.max_num_tokens:
        raise _invalid_parameter(
            f"beam_width is {sampling.beam_width} and a step of this engine computes {options.max_num_tokens} tokens at"
            " most; lower beam_width"
        )
    for name, used in (
        ("temperature, top_k or top_p", _samples(sampling)),
        ("repetition_penalty", sampling.repetition_penalty != 1),
        ("presence_penalty", sampling.presence_penalty != 0),
        ("frequency_penalty", sampling.frequency_penalty != 0),
        ("min_tokens", sampling.min_tokens != 0),
        ("guided_decoding_guide", request.guide is not None),
    ):
        if used:
            raise _invalid_parameter(
                f"beam_width is {sampling.beam_width} and this engine's beam search doesn't support {name}; leave"
                " one out"
            )


def _samples(sampling: SamplingConfig) -> bool:
    """Return whether any value changes the distribution; a temperature of 1 and a top_p of 1 don't."""
    return sampling.temperature not in (None, 0.0, 1.0) or sampling.top_k > 1 or sampling.top_p not in (0.0, 1.0)


def _invalid_parameter(message: str) -> RequestError:
    return RequestError(message, "invalid_parameter")


def generation_config(request: GenerationRequest, options: EngineOptions) -> openvino_genai.GenerationConfig:
    """Translate a request that passed `check_request`, without using the library's defaults.

    Log probabilities are of the model's own distribution, before temperature, penalties and guide.
    """
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = request.max_tokens
    if request.end_ids:
        config.eos_token_id = request.end_ids[0]
        config.stop_token_ids = set(request.end_ids)
        config.min_new_tokens = min(request.sampling.min_tokens, request.max_tokens)
    else:
        config.ignore_eos = True
    if request.sampling.beam_width > 1:
        _set_beam_search(config, request.sampling)
    else:
        config.logprobs = int(request.log_probs)
        _set_sampling(config, request.sampling)
    if request.guide is not None:
        config.structured_output_config = structured_output(request.guide)
    set_speculation(config, options)
    return config


def first_token_config() -> openvino_genai.GenerationConfig:
    """Return a configuration that generates one token, the likeliest, even an end token."""
    return openvino_genai.GenerationConfig(max_new_tokens=1, ignore_eos=True)


def may_end_with_first_token(request: GenerationRequest) -> bool:
    """Return whether all beams of a search could end with the first token, which crashes the library.

    This happens if the likeliest `beam_width` tokens are all end tokens.
    """
    return 1 < request.sampling.beam_width <= len(request.end_ids)


def with_fewer_ends(request: GenerationRequest, first_token: int) -> GenerationRequest:
    """Return a request that the library can search for when the likeliest first token ends the answer.

    It has fewer end tokens than beams, that token among them; the other ends are found in the beams afterwards.
    """
    if first_token not in request.end_ids:
        return request
    others = tuple(end for end in request.end_ids if end != first_token)
    return replace(request, end_ids=(first_token, *others[: request.sampling.beam_width - 2]))


def structured_output(guide: DecodingGuide) -> openvino_genai.StructuredOutputConfig:
    """Return the library's form of a guide."""
    config = openvino_genai.StructuredOutputConfig()
    if guide.type is GuideType.JSON:
        config.json_schema = ANY_JSON
    elif guide.type is GuideType.JSON_SCHEMA:
        config.json_schema = guide.text
    elif guide.type is GuideType.REGEX:
        config.regex = guide.text
    else:
        config.grammar = guide.text
    return config


def _set_beam_search(config: openvino_genai.GenerationConfig, sampling: SamplingConfig) -> None:
    config.num_beams = sampling.beam_width
    config.num_return_sequences = sampling.beam_width
    config.length_penalty = sampling.length_penalty
    criteria = openvino_genai.StopCriteria
    config.stop_criteria = criteria.EARLY if sampling.early_stopping else criteria.HEURISTIC


def _set_sampling(config: openvino_genai.GenerationConfig, sampling: SamplingConfig) -> None:
    config.repetition_penalty = sampling.repetition_penalty
    config.presence_penalty = sampling.presence_penalty
    config.frequency_penalty = sampling.frequency_penalty
    if sampling.greedy:
        config.do_sample = False
        return
    config.do_sample = True
    config.temperature = 1.0 if sampling.temperature is None else max(sampling.temperature, LOWEST_TEMPERATURE)
    if sampling.top_k:
        config.top_k = sampling.top_k
    if sampling.top_p:
        config.top_p = sampling.top_p
    config.rng_seed = _seed(sampling.seed)


def _seed(seed: int | None) -> int:
    """Return the seed as 32 bits for mt19937; a random one without a seed, since the library's default is constant."""
    if seed is None:
        return secrets.randbits(32)
    return (seed ^ (seed >> 32) * 0x9E3779B1) & 0xFFFFFFFF  # Knuth's multiplier spreads the upper half
