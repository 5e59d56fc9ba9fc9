"""A request in the words of SamplingParams, and what the library's samplers can't do of it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from inflight.common.request_error import RequestError
from inflight.runtime.backends.llmapi.library import Sampler
from inflight.runtime.backends.llmapi.sampling_params import SamplingParamsBuilder
from inflight.runtime.backends.llmapi.settings import LlmApiSettings
from inflight.runtime.messages import DecodingGuide, GenerationRequest, GuideType, SamplingConfig
from tests.fixtures.errors import raises

WHOLE, OLD = Sampler("TRTLLMSampler", is_complete=True), Sampler("TorchSampler", is_complete=False)
PLAIN = GenerationRequest((1,), 5, (2, 3))
NEUTRAL = {"max_tokens": 5, "end_id": 2, "pad_id": 2, "ignore_eos": False, "detokenize": False, "stop_token_ids": [3]}


def words_of(sampler: Sampler = WHOLE, **arguments: Any) -> SamplingParamsBuilder:
    arguments = {"guided_decoding_backend": "xgrammar", **arguments}
    return SamplingParamsBuilder(LlmApiSettings("", arguments, 8, 64, 4, 32, 8, (2, 3)), sampler)


def sampled(**fields: Any) -> GenerationRequest:
    return replace(PLAIN, sampling=SamplingConfig(**fields))


@pytest.mark.parametrize(
    ("sampling", "said"),
    [
        (SamplingConfig(), {"top_k": 1}),
        (SamplingConfig(temperature=0.7), {"top_k": 1}),
        (SamplingConfig(temperature=0.0, top_p=0.9), {"top_k": 1}),
        (SamplingConfig(top_k=1, top_p=0.9), {"top_k": 1}),
        (SamplingConfig(top_k=5, seed=7), {"temperature": 1.0, "top_k": 5, "seed": 7}),
        (SamplingConfig(temperature=0.5, top_p=0.9, seed=0), {"temperature": 0.5, "top_p": 0.9, "seed": 0}),
        (
            SamplingConfig(repetition_penalty=1.2, presence_penalty=-1, frequency_penalty=0.5, min_tokens=4),
            {
                "top_k": 1,
                "repetition_penalty": 1.2,
                "presence_penalty": -1,
                "frequency_penalty": 0.5,
                "min_tokens": 4,
            },
        ),
    ],
)
def test_a_token_is_chosen_as_tensorrt_llm_has_it(sampling: SamplingConfig, said: dict[str, Any]) -> None:
    """A temperature alone is greedy, where the library would sample."""
    assert words_of().build(replace(PLAIN, sampling=sampling)) == NEUTRAL | said


def test_without_a_seed_each_request_has_its_own() -> None:
    seeds = {words_of().build(sampled(top_p=1.0))["seed"] for _ in range(10)}
    assert len(seeds) == 10
    assert all(0 <= seed < 2**64 for seed in seeds)


def test_without_an_end_the_library_is_told_to_go_on() -> None:
    said = words_of().build(GenerationRequest((1,), 5))
    assert (said["end_id"], said["ignore_eos"]) == (2, True)
    assert "stop_token_ids" not in said


def test_a_guided_answer_ends_even_where_the_request_has_no_end() -> None:
    request = GenerationRequest((1,), 5, guide=DecodingGuide(GuideType.REGEX, "a+"))
    said = words_of().build(request)
    assert (said["end_id"], said["stop_token_ids"], said["ignore_eos"]) == (2, [3], False)
    assert said["guide"] == {"regex": "a+"}
    assert words_of().end_ids_for(request) == (2, 3)


@pytest.mark.parametrize(
    ("guide", "said"),
    [
        (DecodingGuide(GuideType.JSON), {"json_object": True}),
        (DecodingGuide(GuideType.JSON_SCHEMA, "{}"), {"json": "{}"}),
        (DecodingGuide(GuideType.EBNF_GRAMMAR, "root ::= x"), {"grammar": "root ::= x"}),
    ],
)
def test_each_kind_of_guide_has_its_argument(guide: DecodingGuide, said: dict[str, Any]) -> None:
    assert words_of().build(replace(PLAIN, guide=guide))["guide"] == said


def test_words_to_keep_out_and_biases() -> None:
    said = words_of().build(
        replace(PLAIN, bad_ids=((4,), (5, 6), (7,)), logit_bias=((1, 2.5), (7, -math.inf)), log_probs=True)
    )
    assert said["bad_token_ids"] == [4, 7]
    assert said["bad_words"] == [(5, 6)]
    assert said["embedding_bias"] == [0, 2.5, 0, 0, 0, 0, 0, -math.inf]
    assert said["logprobs"] == 1


def test_a_beam_search_returns_all_its_beams() -> None:
    request = sampled(beam_width=3, length_penalty=0.5, early_stopping=False)
    said = words_of(max_beam_width=3).build(request)
    searched = {"use_beam_search": True, "n": 3, "best_of": 3, "length_penalty": 0.5, "early_stopping": 0}
    assert said == NEUTRAL | searched


@pytest.mark.parametrize(
    ("request_", "arguments", "said"),
    [
        (sampled(beam_width=2), {}, "beam_width is 2, and the engine was built for 1"),
        (sampled(beam_width=2), {"max_beam_width": 4}, "beam_width is 2, and the engine was built for 4"),
        (PLAIN, {"max_beam_width": 4}, "beam_width is 1, and the engine was built for 4"),
        (
            sampled(beam_width=2, temperature=0.5),
            {"max_beam_width": 2},
            "beam_width is 2, and beam search",
        ),
        (sampled(beam_width=2, top_k=3), {"max_beam_width": 2}, "beam_width is 2, and beam search"),
        (sampled(beam_width=2, top_p=0.5), {"max_beam_width": 2}, "beam_width is 2, and beam search"),
        (sampled(top_p=1.5), {}, "top_p is 1.5"),
        (
            replace(PLAIN, guide=DecodingGuide(GuideType.JSON_SCHEMA, "{")),
            {},
            "guided_decoding_guide is not a JSON schema",
        ),
        (
            replace(PLAIN, guide=DecodingGuide(GuideType.JSON_SCHEMA, "3")),
            {},
            "guided_decoding_guide is not a JSON schema (it is neither an object nor true or false); fix it",
        ),
        (
            replace(PLAIN, guide=DecodingGuide(GuideType.JSON_SCHEMA, '{"const": NaN}')),
            {},
            "guided_decoding_guide is not a JSON schema (NaN is not a JSON number); fix it",
        ),
        (
            replace(PLAIN, guide=DecodingGuide(GuideType.JSON_SCHEMA, 100_000 * "[")),
            {},
            "guided_decoding_guide is not a JSON schema (it is nested too deeply); fix it",
        ),
    ],
)
def test_values_that_can_not_be(request_: GenerationRequest, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError) as raised:
        words_of(**arguments).check(request_)
    assert str(raised.value).startswith(said)
    assert raised.value.code == "invalid_parameter"


def test_what_upstreams_clients_always_send_goes_with_beams() -> None:
    words_of(max_beam_width=2).check(sampled(beam_width=2, temperature=1.0, top_k=1, top_p=0.0))


def test_guides_need_a_backend() -> None:
    with raises(RequestError, "unsupported_input", naming="guided_decoding_backend"):
        words_of(guided_decoding_backend=None).check(replace(PLAIN, guide=DecodingGuide(GuideType.JSON)))


@pytest.mark.parametrize(
    ("name", "request_"),
    [
        ("repetition_penalty", sampled(repetition_penalty=1.1)),
        ("presence_penalty", sampled(presence_penalty=1)),
        ("frequency_penalty", sampled(frequency_penalty=1)),
        ("min_tokens", sampled(min_tokens=2)),
        ("bad_words_list", replace(PLAIN, bad_ids=((4,),))),
        ("seed", sampled(top_p=0.9, seed=1)),
        ("return_log_probs", replace(sampled(top_p=0.9), log_probs=True)),
    ],
)
def test_what_a_sampler_would_ignore_is_refused_by_name(name: str, request_: GenerationRequest) -> None:
    words_of(WHOLE).check(request_)
    with raises(RequestError, "unsupported_input", naming=name):
        words_of(OLD).check(request_)


@pytest.mark.parametrize(
    "request_",
    [
        PLAIN,
        sampled(seed=1),
        sampled(top_p=0.9),
        replace(PLAIN, log_probs=True),
        replace(PLAIN, logit_bias=((1, 1.0),)),
    ],
)
def test_what_every_sampler_does_is_taken(request_: GenerationRequest) -> None:
    words_of(OLD).check(request_)
