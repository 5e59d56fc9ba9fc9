"""The stand-in has upstream's names and defaults, and the adapter asks for nothing that a version doesn't know."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
from collections.abc import Iterator
from typing import Any

import pytest

from inflight.runtime.backends.llmapi.library import Sampler
from inflight.runtime.backends.llmapi.sampling_params import SamplingParamsBuilder
from inflight.runtime.backends.llmapi.settings import LlmApiSettings
from inflight.runtime.messages import DecodingGuide, GenerationRequest, GuideType, SamplingConfig
from tests.fixtures.errors import raises
from tests.runtime.backends.llmapi.standin import STANDIN, imported

UPSTREAM = json.loads((STANDIN / "upstream.json").read_text())
NOW, LATER = UPSTREAM["1.2"], UPSTREAM["later"]
REQUIRED = "(required)"


@pytest.fixture(scope="module")
def package() -> Iterator[Any]:
    with imported() as found:
        yield found


def defaults(fields: Any) -> dict[str, Any]:
    missing = dataclasses.MISSING
    return {field.name: REQUIRED if field.default is missing else field.default for field in fields if field.init}


@pytest.mark.parametrize("name", ["SamplingParams", "GuidedDecodingParams", "LoRARequest"])
def test_its_dataclasses_have_upstreams_fields_and_defaults(package: Any, name: str) -> None:
    found = getattr(importlib.import_module("tensorrt_llm.llmapi"), name)
    assert defaults(dataclasses.fields(found)) == NOW[name]["fields"]


def test_its_settings_have_upstreams_names_and_take_no_others(package: Any) -> None:
    llmapi = importlib.import_module("tensorrt_llm.llmapi")
    cache = {name: field.default for name, field in llmapi.KvCacheConfig.model_fields.items()}
    assert cache == NOW["KvCacheConfig"]["fields"]
    assert set(llmapi.TorchLlmArgs.model_fields) == {*NOW["LLM"]["committed"], *NOW["LLM"]["others"]}
    with raises(ValueError, naming="max_batchsize"):
        package.LLM(model="nowhere", max_batchsize=4)
    with raises(ValueError, naming="tokens_a_block"):
        llmapi.KvCacheConfig(tokens_a_block=4)


def test_its_answers_have_upstreams_names(package: Any) -> None:
    llm = importlib.import_module("tensorrt_llm.llmapi.llm")
    parameters = list(inspect.signature(package.LLM.generate_async).parameters)
    assert parameters[1:] == NOW["generate_async"]["parameters"]
    names = NOW["results"]["CompletionOutput"]
    assert [name for name in names if not hasattr(llm.CompletionOutput(0), name)] == []
    told = inspect.getsource(llm.RequestOutput)
    wanted = NOW["results"]["RequestOutput"] + LATER["results"]["RequestOutput"]
    assert [name for name in wanted if name not in told] == []


def test_later_versions_encode_as_upstreams_do() -> None:
    with imported("1.4.0rc1") as later:
        llm = importlib.import_module("tensorrt_llm.llmapi.llm")
        settings = importlib.import_module("tensorrt_llm.llmapi").TorchLlmArgs.model_fields
        assert list(inspect.signature(later.LLM.encode).parameters)[1:] == LATER["encode"]["parameters"]
        assert {field.name for field in dataclasses.fields(llm.EncoderOutput)} == {*LATER["encode"]["results"]}
        assert set(settings) - {*NOW["LLM"]["committed"], *NOW["LLM"]["others"]} == {*LATER["LLM"]["added"]}


def test_the_adapter_uses_only_what_every_version_knows() -> None:
    """All that it can ask of SamplingParams, at once."""
    settings = LlmApiSettings("", {"guided_decoding_backend": "xgrammar"}, 8, 64, 4, 32, 8, (2, 3))
    words = SamplingParamsBuilder(settings, Sampler("", is_complete=True))
    wild = SamplingConfig(
        temperature=0.5, top_k=3, top_p=0.5, seed=1, repetition_penalty=2, presence_penalty=1, min_tokens=3
    )
    request = GenerationRequest((1,), 5, (2, 3), wild, bad_ids=((4,), (5, 6)), logit_bias=((1, 2.0),), log_probs=True)
    guided = dataclasses.replace(
        request, sampling=SamplingConfig(frequency_penalty=1), guide=DecodingGuide(GuideType.REGEX, "a")
    )
    beams = GenerationRequest((1,), 5, (2,), SamplingConfig(beam_width=2))
    asked = {name for one in (request, guided, beams) for name in words.build(one)} - {"guide", "bad_words"}
    known = {*NOW["SamplingParams"]["fields"]} - {*LATER["SamplingParams"]["removed"]}
    assert asked - known == set()
    assert len(asked) > 20
