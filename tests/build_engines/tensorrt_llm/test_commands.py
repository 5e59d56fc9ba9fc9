"""Every emitted command parses with upstream's flags, as the tables beside this file hold them."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

import pytest

from build_engines.capabilities.tensorrt_llm import CAPABILITIES, Architecture
from build_engines.errors import BuildError
from build_engines.tensorrt_llm.commands import BuildPaths, Command, commands
from build_engines.tensorrt_llm.rules.recipe import DRAFTING
from tests.build_engines.tensorrt_llm.models import ARCHITECTURES, plan_of
from tests.fixtures.errors import raises
from tests.standins.nvidia.standin import FLAGS, parser_of, program_tables

PLACES = BuildPaths(
    PurePath("/models/m"), PurePath("/engines/e/tllm_checkpoint"), PurePath("/engines/e"), PurePath("/app/x/examples")
)
TABLES = program_tables()
LIMITS = {"max_batch_size": 64, "max_input_len": 512, "max_seq_len": 1024, "max_num_tokens": 2048, "max_beam_width": 2}
# What a build can be asked for beside a precision; each is tried with each architecture.
OPTIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "limits": {f"limits.{name}": value for name, value in LIMITS.items()} | {"limits.opt_num_tokens": 128},
    "two by two": {"tensor_parallel": 2, "pipeline_parallel": 2, "workers": 2},
    "tensor parallel": {"tensor_parallel": 2},
    "no pages": {"paged_context_fmha": False},
    "profiles": {"multiple_profiles": True},
    "logits": {"gather_context_logits": True, "gather_generation_logits": True, "logits_dtype": "float32"},
    "lora": {"lora.target_modules": ["attn_qkv", "mlp_4h_to_h"], "lora.max_rank": 16},
    "drafts": {"speculation.mode": "draft_tokens_external", "speculation.max_draft_len": 5},
    "look-ahead": {"speculation.mode": "lookahead_decoding", "speculation.max_draft_len": 83},
    "build": {"weight_streaming": True, "fast_build": True, "log_level": "verbose"},
    "plugins": {
        "plugins.gemm": "disable",
        "plugins.moe": "disable",
        "plugins.nccl": "float16",
        "plugins.tokens_per_block": 64,
        "plugins.use_fused_mlp": False,
    },
    "float16": {"dtype": "float16"},
}


# What a script's network computes; each was read in tensorrt_llm/models.
NETWORKS: dict[str, dict[str, Any]] = json.loads((FLAGS.parent / "networks.json").read_text())


def computes(architecture: Architecture, option: dict[str, Any]) -> bool:
    """Whether upstream's network takes the option; trtllm-build would fail after the conversion, or drop it."""
    network = NETWORKS[architecture.family.script.removesuffix("/convert_checkpoint.py")]
    asked = {
        "pipeline": option.get("pipeline_parallel", 1) > 1,
        "lora": any(name.startswith("lora.") for name in option),
        "lookahead": option.get("speculation.mode") == "lookahead_decoding",
    }
    return all(network[name] for name, needed in asked.items() if needed)


def program_of(command: Command) -> str:
    if command.step == "build":
        assert command.arguments[0] == "trtllm-build"
        return "trtllm-build"
    python, script = command.arguments[:2]
    assert python == "python3"
    return str(PurePath("examples") / PurePath(script).relative_to(PLACES.examples))


def parse(command: Command) -> argparse.Namespace:
    table = TABLES[program_of(command)]
    arguments = command.arguments[1 if command.step == "build" else 2 :]
    upstream = json.loads((FLAGS / f"{table}.json").read_text())
    # Upstream's parsers take abbreviations; we never mean one.
    known = {name for flag in upstream["flags"] for name in flag["names"]}
    assert {part for part in arguments if part.startswith("--")} <= known
    read = parser_of(table).parse_args(list(arguments))
    # What the script asserts once it has parsed.
    assert vars(read).items() >= upstream.get("asserts", {}).items()
    return read


def every_build() -> Iterator[tuple[Architecture, dict[str, Any]]]:
    caches = ("auto", "fp8", "int8")
    for architecture in ARCHITECTURES.values():
        for quantization, cache in itertools.product(architecture.quantizations, caches):
            if cache == "auto" or architecture.quantized_cache:
                yield architecture, {"quantization": quantization, "kv_cache_dtype": cache}
        for option in OPTIONS.values():
            if computes(architecture, option):
                yield architecture, option


def built(architecture: Architecture, fields: dict[str, Any]) -> tuple[Command, Command]:
    plan = plan_of(architecture, {"limits.max_seq_len": 1024} | fields)
    return commands(plan.recipe, plan.architecture, PLACES)


def test_every_command_parses_with_upstreams_flags() -> None:
    seen = set()
    for architecture, fields in every_build():
        first, second = built(architecture, fields)
        checkpoint, engine = vars(parse(first)), parse(second)
        seen.add((program_of(first), architecture.name))
        assert str(checkpoint["model_dir"]) == "/models/m"
        assert str(checkpoint.get("output_dir") or checkpoint["output_model_dir"]) == engine.checkpoint_dir
        assert engine.output_dir == "/engines/e"
        if checkpoint.get("dtype") is not None:
            assert checkpoint["dtype"] == fields.get("dtype", checkpoint["dtype"]) != "auto"
        assert (checkpoint.get("tp_size") or checkpoint["world_size"]) == fields.get("tensor_parallel", 1)
        assert checkpoint.get("pp_size", 1) == fields.get("pipeline_parallel", 1)
    assert {name for _, name in seen} == set(ARCHITECTURES)
    scripts = {f"examples/{one.family.script}" for one in ARCHITECTURES.values()}
    assert {program for program, _ in seen} == {*scripts, "examples/quantization/quantize.py"}


def test_what_a_network_does_not_take_is_refused_at_once() -> None:
    """And nothing else: what it takes is among the builds above."""
    refused = [
        (one, option) for one in ARCHITECTURES.values() for option in OPTIONS.values() if not computes(one, option)
    ]
    assert len(refused) == 10 + 7 + 11
    for architecture, option in refused:
        with raises(BuildError, "invalid_parameter", naming=architecture.name):
            built(architecture, option)


@pytest.mark.parametrize("mode", DRAFTING)
def test_drafting_models_are_converted_with_their_own_scripts(tmp_path: Path, mode: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    fields = {"speculation.mode": mode, "speculation.max_draft_len": 20, "speculation.model": str(tmp_path)}
    for name in DRAFTING[mode]:
        first, second = built(ARCHITECTURES[name], fields | {"tensor_parallel": 2})
        read = vars(parse(first))
        model = read.get("medusa_model_dir") or read.get("eagle_model_dir") or read.get("drafter_model_dir")
        assert model == str(tmp_path)
        beams = read.get("redrafter_num_beams", 0) * read.get("redrafter_draft_len_per_beam", 0)
        assert (read.get("max_medusa_token_len") or read.get("max_draft_len") or beams) == 20
        assert (parse(second).speculative_decoding_mode, parse(second).max_draft_len) == (mode, 20)


def test_what_is_said_arrives_where_it_is_meant() -> None:
    llama = ARCHITECTURES["LlamaForCausalLM"]
    recipe = {"quantization": "int4_awq", "kv_cache_dtype": "auto", "calibration.awq_block_size": 64}
    quantize, build = (parse(command) for command in built(llama, recipe | OPTIONS["limits"]))
    assert (quantize.qformat, quantize.kv_cache_dtype, quantize.awq_block_size) == ("int4_awq", None, 64)
    assert {name: getattr(build, name) for name in LIMITS} == LIMITS
    assert (build.opt_num_tokens, build.use_paged_context_fmha) == (128, "enable")
    convert, build = (parse(command) for command in built(llama, {"quantization": "int8_wo"} | OPTIONS["no pages"]))
    assert (convert.use_weight_only, convert.weight_only_precision) == (True, "int8")
    assert build.use_paged_context_fmha == "disable"
    gemma, _ = (parse(command) for command in built(ARCHITECTURES["Gemma2ForCausalLM"], {"quantization": "int4_wo"}))
    assert (gemma.ckpt_type, gemma.world_size, gemma.weight_only_precision) == ("hf", 1, "int4")
    _, lora = (parse(command) for command in built(llama, OPTIONS["lora"]))
    assert (lora.lora_plugin, lora.lora_target_modules, lora.max_lora_rank) == (
        "auto",
        ["attn_qkv", "mlp_4h_to_h"],
        16,
    )
    _, fp8 = (parse(command) for command in built(llama, {"quantization": "fp8", "kv_cache_dtype": "fp8"}))
    assert (fp8.use_fp8_context_fmha, fp8.gemm_plugin) == ("enable", "auto")
    _, nvfp4 = (parse(command) for command in built(llama, {"quantization": "nvfp4"}))
    assert nvfp4.gemm_plugin is None
    _, streaming = (parse(command) for command in built(llama, {"weight_streaming": True}))
    assert (streaming.weight_streaming, streaming.gemm_plugin) == (True, "disable")
    assert streaming.kv_cache_type == "paged"


@pytest.mark.parametrize(
    "wrong",
    [
        ["--max_output_len", "5"],
        ["--use_paged_context_fmha"],
        ["--use_paged_context_fmha", "true"],
        ["--max_batch_size", "many"],
        ["--speculative_decoding_mode", "ngram"],
        ["--gemm_plugin", "int4"],
    ],
)
def test_the_tables_refuse_what_upstream_refuses(wrong: list[str]) -> None:
    _, build = built(ARCHITECTURES["LlamaForCausalLM"], {})
    with pytest.raises(SystemExit):
        parser_of("trtllm-build").parse_args([*build.arguments[1:], *wrong])


def test_one_familys_flags_are_not_anothers() -> None:
    """A command of Llama's with Gemma's table, and the other way round."""
    llama, _ = built(ARCHITECTURES["LlamaForCausalLM"], {})
    gemma, _ = built(ARCHITECTURES["GemmaForCausalLM"], {})
    for arguments, table in ((llama.arguments[2:], "gemma"), (gemma.arguments[2:], "llama")):
        with pytest.raises(SystemExit):
            parser_of(table).parse_args(list(arguments))


def test_a_flag_that_upstream_lacks_would_be_found() -> None:
    llama, _ = built(ARCHITECTURES["LlamaForCausalLM"], {})
    with pytest.raises(AssertionError):
        parse(Command("convert", (*llama.arguments, "--use_embedding_sharing")))
    abbreviated = tuple("--work" if part == "--workers" else part for part in llama.arguments)
    with pytest.raises(AssertionError):
        parse(Command("convert", abbreviated))


def test_every_table_says_where_it_is_from() -> None:
    for path in FLAGS.glob("*.json"):
        for source in json.loads(path.read_text())["sources"]:
            assert source["path"].endswith(".py")
            assert source["repository"].endswith("/TensorRT-LLM")
            assert source["note"]


def test_granite_is_converted_the_old_way() -> None:
    command, _ = built(ARCHITECTURES["GraniteForCausalLM"], {})
    assert command.shell().startswith("TRTLLM_DISABLE_UNIFIED_CONVERTER=1 python3 ")


def test_each_line_of_the_table_knows_its_own_architectures() -> None:
    assert set(CAPABILITIES) == {"1.2"}
    assert {"LlamaForCausalLM", "Qwen3ForCausalLM", "Gemma2ForCausalLM", "Phi3ForCausalLM"} <= set(ARCHITECTURES)
    with pytest.raises(BuildError):
        built(ARCHITECTURES["PhiForCausalLM"], {"quantization": "fp8"})
