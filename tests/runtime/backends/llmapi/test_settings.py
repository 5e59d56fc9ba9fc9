"""What an engine directory and a deployment together say to the library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from inflight.runtime.backends.llmapi.settings import LlmApiSettings
from tests.fixtures.errors import raises
from tests.runtime.backends.llmapi.standin import END_IDS, LONGEST, VOCABULARY, engine_dir, options_of


def read(tmp_path: Path, deployment: dict[str, Any] | None = None, **arguments: Any) -> LlmApiSettings:
    return LlmApiSettings.from_options(options_of(engine_dir(tmp_path / "engine", **arguments), **(deployment or {})))


def test_the_model_file_is_handed_on_as_it_is(tmp_path: Path) -> None:
    cache = {"free_gpu_memory_fraction": 0.5}
    settings = read(tmp_path, kv_cache_config=cache, tensor_parallel_size=2)
    assert settings.arguments == {
        "max_batch_size": 4,
        "guided_decoding_backend": "xgrammar",
        "enable_chunked_prefill": True,
        "kv_cache_config": cache,
        "tensor_parallel_size": 2,
        "max_num_tokens": 8192,
    }
    assert settings.checkpoint == str(tmp_path / "engine" / "checkpoint")
    assert (settings.vocabulary_size, settings.max_seq_len) == (VOCABULARY, LONGEST)
    assert settings.end_ids == END_IDS  # not the one that the vocabulary lacks
    assert settings.guides


def test_a_deployment_may_lower_what_the_engine_was_built_with(tmp_path: Path) -> None:
    less = {"kv_cache_reuse": False, "chunked_context": False, "kv_cache_tokens": 640, "max_num_sequences": 3}
    settings = read(tmp_path, less | {"max_num_tokens": 100}, max_num_tokens=4096)
    assert settings.arguments["max_num_tokens"] == 100
    assert settings.arguments["kv_cache_config"] == {"enable_block_reuse": False, "max_tokens": 640}
    assert settings.arguments["enable_chunked_prefill"] is False
    assert (settings.max_num_sequences, settings.kv_blocks) == (3, 20)


def test_without_a_bound_the_cache_is_the_librarys_affair(tmp_path: Path) -> None:
    """Every request of the longest length has room in our count, so that none waits here for a block."""
    settings = read(tmp_path, {"max_num_sequences": 64}, max_seq_len=1000, kv_cache_config={"tokens_per_block": 64})
    assert settings.max_num_sequences == 4
    assert settings.max_seq_len == 1000
    assert (settings.kv_block_tokens, settings.kv_blocks) == (64, 4 * 16)
    assert "max_tokens" not in settings.arguments["kv_cache_config"]


def test_beams_take_their_places(tmp_path: Path) -> None:
    settings = read(tmp_path, max_beam_width=3)
    assert (settings.beam_width, settings.max_num_sequences) == (3, 12)


def test_speculation_is_the_engines_own(tmp_path: Path) -> None:
    with raises(ValueError, naming="speculative_config"):
        read(tmp_path, {"prompt_lookup": True})


def test_a_model_file_without_names_is_refused(tmp_path: Path) -> None:
    directory = engine_dir(tmp_path / "engine")
    (directory / "model.yaml").write_text("- 1\n")
    with raises(ValueError, naming="model.yaml"):
        LlmApiSettings.from_options(options_of(directory))
