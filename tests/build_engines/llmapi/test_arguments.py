"""Arguments of the LLM API, as people write them: taken as they are meant, or refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from build_engines.errors import BuildError
from build_engines.llmapi.arguments import KvCacheArguments, LlmArguments, read_arguments
from tests.fixtures.errors import raises

UPSTREAM = json.loads((Path(__file__).parents[2] / "standins" / "llmapi" / "upstream.json").read_text())["1.2"]


def test_a_file_and_what_is_said_over_it(tmp_path: Path) -> None:
    path = tmp_path / "arguments.yaml"
    path.write_text("tensor_parallel_size: 2\nkv_cache_config:\n  max_tokens: 1000\n  tokens_per_block: 64\n")
    overrides = ["kv_cache_config.max_tokens=65536", "guided_decoding_backend=null", "extra.stream_interval=4"]
    arguments = read_arguments(path, overrides)
    assert arguments == LlmArguments(
        tensor_parallel_size=2,
        kv_cache_config=KvCacheArguments(max_tokens=65536, tokens_per_block=64),
        guided_decoding_backend=None,
        extra={"stream_interval": 4},
    )


def test_without_anything_the_defaults_hold(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("")
    assert read_arguments(tmp_path / "empty.yaml") == read_arguments(None) == LlmArguments()


def test_what_is_handed_to_the_library_has_its_names() -> None:
    known = {*UPSTREAM["LLM"]["committed"], *UPSTREAM["LLM"]["others"]}
    everything = LlmArguments(
        max_beam_width=2,
        sampler_type="TorchSampler",
        enable_lora=True,
        lora_config={"max_lora_rank": 8},
        speculative_config={"decoding_type": "NGram", "max_draft_len": 4},
    )
    for arguments in (LlmArguments(), everything):
        keywords = arguments.keywords(4096)
        assert keywords.keys() - known == set()
        assert keywords["kv_cache_config"].keys() - UPSTREAM["KvCacheConfig"]["fields"].keys() == set()
    assert LlmArguments.model_fields.keys() - known == {"extra"}
    assert KvCacheArguments.model_fields.keys() - UPSTREAM["KvCacheConfig"]["fields"].keys() == set()


def test_the_documentation_names_them_all() -> None:
    text = (Path(__file__).parents[3] / "docs" / "llmapi.md").read_text(encoding="utf-8")
    assert [
        name for name in [*LlmArguments.model_fields, *KvCacheArguments.model_fields] if f"`{name}`" not in text
    ] == []


def test_what_says_nothing_is_left_to_the_library() -> None:
    assert LlmArguments(guided_decoding_backend=None).keywords(4096) == {
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "max_batch_size": 256,
        "max_num_tokens": 8192,
        "max_seq_len": 4096,
        "max_beam_width": 1,
        "dtype": "auto",
        "kv_cache_config": {
            "enable_block_reuse": True,
            "free_gpu_memory_fraction": 0.9,
            "tokens_per_block": 32,
            "enable_partial_reuse": True,
        },
        "enable_chunked_prefill": True,
    }


def test_a_beam_search_is_made_possible_and_extra_has_the_last_word() -> None:
    keywords = LlmArguments(max_beam_width=4, extra={"cuda_graph_config": {"enable_padding": True}}).keywords(4096)
    assert keywords["disable_overlap_scheduler"] is True
    assert keywords["cuda_graph_config"] == {"enable_padding": True}


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({"max_batchsize": 4}, "There is no argument max_batchsize in {}; did you mean max_batch_size?"),
        ({"tp": 4}, "There is no argument tp in {}; put other arguments of tensorrt_llm.LLM under extra."),
        (
            {"kv_cache_config": {"free_memory_fraction": 0.5}},
            "There is no argument kv_cache_config.free_memory_fraction in {}; did you mean"
            " kv_cache_config.free_gpu_memory_fraction?",
        ),
        (
            {"kv_cache_config": {"zzz": 0.5}},
            "There is no argument kv_cache_config.zzz in {}; leave it out.",
        ),
        ({"max_batch_size": 0}, "In {}, max_batch_size is 0; it must be a number greater than 0."),
        ({"max_batch_size": True}, "In {}, max_batch_size is True; it must be a whole number."),
        ({"max_batch_size": "many"}, "In {}, max_batch_size is 'many'; it must be a whole number."),
        (
            {"enable_chunked_prefill": "perhaps"},
            "In {}, enable_chunked_prefill is 'perhaps'; it must be true or false.",
        ),
        ({"dtype": "fp8"}, "In {}, dtype is 'fp8'; it must be one of auto, float16, bfloat16 or float32."),
        (
            {"guided_decoding_backend": "outlines"},
            "In {}, guided_decoding_backend is 'outlines'; it must be one of xgrammar or llguidance.",
        ),
        (
            {"kv_cache_config": {"free_gpu_memory_fraction": 1.5}},
            "In {}, kv_cache_config.free_gpu_memory_fraction is 1.5; it must be a number of at most 1.0.",
        ),
        (
            {"kv_cache_config": {"tokens_per_block": 48}},
            "In {}, kv_cache_config.tokens_per_block is 48; it must be one of 8, 16, 32, 64 or 128.",
        ),
        ({"kv_cache_config": 4}, "In {}, kv_cache_config is 4; it must be a mapping of fields to values."),
        (
            {"speculative_config": {"max_draft_len": 4}},
            "In {}, speculative_config is {{'max_draft_len': 4}}; it must be a mapping with a decoding_type"
            " (Eagle, MTP, NGram, DraftTarget and others).",
        ),
        (
            {"extra": {"max_batch_size": 4}},
            "In {}, extra is {{'max_batch_size': 4}}; it must be a mapping without max_batch_size, which"
            " is set outside extra.",
        ),
        (
            {"extra": {"model": "elsewhere"}},
            "In {}, extra is {{'model': 'elsewhere'}}; it must be a mapping without model, which the engine sets.",
        ),
        (
            {"speculative_config": {"decoding_type": "MTP", "max_draft_len": "x"}},
            "In {}, speculative_config is {{'decoding_type': 'MTP', 'max_draft_len': 'x'}}; it must be a"
            " mapping whose max_draft_len is an integer of at least 0.",
        ),
        ({"max_seq_len": 1}, "In {}, max_seq_len is 1; it must be a number of at least 2."),
        (
            {"extra": {"trust_remote_code": True}},
            "In {}, extra is {{'trust_remote_code': True}}; it must be a mapping without"
            " trust_remote_code, which is set outside extra.",
        ),
        (["tensor_parallel_size"], "{} holds a list; write arguments by name."),
    ],
)
def test_a_mistake_is_one_sentence_that_names_it(tmp_path: Path, written: Any, message: str) -> None:
    path = tmp_path / "arguments.yaml"
    path.write_text(yaml.safe_dump(written))
    with pytest.raises(BuildError) as raised:
        read_arguments(path)
    assert str(raised.value) == message.format(path)
    assert raised.value.code == "invalid_parameter"


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("max_batch_size", "'max_batch_size' is not an argument; write name=value."),
        ("=4", "'=4' is not an argument; write name=value."),
        ("max_num_token=4", "There is no argument max_num_token in the arguments; did you mean max_num_tokens?"),
        ("dtype.x=4", "In the arguments, dtype is {'x': 4}; it must be one of auto, float16, bfloat16 or float32."),
        ("extra=[", "The value of extra is not valid YAML (while parsing"),
        ("extra={a: 1, a: 2}", "The value of extra is not valid YAML (the key a is given twice"),
        ("extra=2026-01-01", "The value of extra is invalid: it is 2026-01-01, which is not"),
    ],
)
def test_so_is_one_on_the_command_line(override: str, sentence: str) -> None:
    with pytest.raises(BuildError) as raised:
        read_arguments(None, [override])
    assert str(raised.value).startswith(sentence)


def test_files_that_can_not_be_read(tmp_path: Path) -> None:
    with raises(BuildError, "invalid_parameter", naming="absent.yaml"):
        read_arguments(tmp_path / "absent.yaml")
    (tmp_path / "broken.yaml").write_text("a: [")
    with raises(BuildError, "invalid_parameter", naming=("broken.yaml", "YAML")):
        read_arguments(tmp_path / "broken.yaml")
    (tmp_path / "part.yaml").write_text("kv_cache_config: 4\n")
    with raises(BuildError, "invalid_parameter", naming=("kv_cache_config", "4")):
        read_arguments(tmp_path / "part.yaml", ["kv_cache_config.max_tokens=4"])
