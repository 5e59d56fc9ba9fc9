"""What is made of tensorrt_llm by its version."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inflight.common.request_error import RequestError
from inflight.runtime.backends.llmapi.library import LlmApiLibrary
from inflight.runtime.backends.llmapi.settings import LlmApiSettings
from tests.fixtures.errors import raises
from tests.runtime.backends.llmapi.standin import engine_dir, imported, options_of


def settings_of(tmp_path: Path, **arguments: Any) -> LlmApiSettings:
    return LlmApiSettings.from_options(options_of(engine_dir(tmp_path / "engine", **arguments)))


@pytest.mark.parametrize(
    ("version", "arguments", "name", "whole", "started_with"),
    [
        ("1.2.1", {}, "TRTLLMSampler", True, "TRTLLMSampler"),
        ("1.2.0rc2", {"sampler_type": "TorchSampler"}, "TorchSampler", False, "TorchSampler"),
        ("1.2.1", {"speculative_config": {"decoding_type": "NGram"}}, "auto", False, "auto"),
        ("1.3.0rc14", {}, "TRTLLMSampler", True, None),
        ("1.3.0rc26", {}, "auto", True, "auto"),
        ("1.3.0", {"sampler_type": "TorchSampler"}, "TorchSampler", True, "TorchSampler"),
        ("1.4.0rc1", {}, "auto", True, "auto"),
    ],
)
def test_the_sampler_is_one_that_ignores_nothing_where_there_is_one(
    tmp_path: Path, version: str, arguments: dict[str, Any], name: str, whole: bool, started_with: str | None
) -> None:
    settings = settings_of(tmp_path, **arguments)
    with imported(version):
        library = LlmApiLibrary.load()
        sampler = library.sampler(settings)
        assert (sampler.name, sampler.is_complete) == (name, whole)
        if started_with is not None:
            llm = library.create_llm(settings)
            assert llm.args.sampler_type == started_with
            assert llm.args.kv_cache_config.tokens_per_block == 32
            llm.shutdown()


def test_words_of_several_tokens_stand_where_the_library_looks_for_them() -> None:
    with imported():
        params = LlmApiLibrary.load().sampling_params({"end_id": 2, "bad_token_ids": [4], "bad_words": [(5, 6)]})
        assert params._get_bad_words() == [[4], [5, 6]]


def test_a_library_that_keeps_them_elsewhere_refuses_them_by_name() -> None:
    other = SimpleNamespace(SamplingParams=SimpleNamespace)
    with raises(RequestError, "unsupported_input", naming="bad_words_list"):
        LlmApiLibrary(other, other, (2, 0, 0)).sampling_params({"end_id": 2, "bad_words": [(5, 6)]})


def test_guides_and_adapters_have_types_of_their_own(tmp_path: Path) -> None:
    with imported():
        library = LlmApiLibrary.load()
        params = library.sampling_params({"end_id": 2, "guide": {"regex": "a+"}})
        assert params.guided_decoding.regex == "a+"
        adapter = library.lora_request(lora_name="1-a", lora_int_id=1, lora_path=str(tmp_path))
        assert (adapter.lora_int_id, adapter.lora_ckpt_source) == (1, "hf")


def test_only_a_request_error_is_about_one_request() -> None:
    with imported():
        library = LlmApiLibrary.load()
        assert library.ends_one_request(library.llmapi.RequestError("too long"))
        assert not library.ends_one_request(RuntimeError("LLM is shutting down"))


@pytest.mark.parametrize("version", ["1.2.1", "1.3.0"])
def test_a_library_that_was_shut_down_does_not_stand(tmp_path: Path, version: str) -> None:
    with imported(version):
        library = LlmApiLibrary.load()
        llm = library.create_llm(settings_of(tmp_path))
        assert library.is_healthy(llm)
        llm.shutdown()
        assert not library.is_healthy(llm)
