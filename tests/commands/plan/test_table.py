from __future__ import annotations

from pathlib import Path

from tests.commands.plan.plan_reports import GPU, plan, report, write


def test_what_can_not_be_built_is_marked_and_explained_once(tmp_path: Path) -> None:
    done = plan(write(tmp_path, "opt-13b"), *GPU)
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert sum(line.rstrip().endswith("not built") for line in lines) == 10
    assert [line for line in lines if line.startswith("Not built:")] == [
        "Not built: TensorRT-LLM 1.2 doesn't quantize the KV cache of OPTForCausalLM.",
        "Not built: TensorRT-LLM 1.2 doesn't build OPTForCausalLM with quantization fp8.",
        "Not built: TensorRT-LLM 1.2 doesn't build OPTForCausalLM with quantization int4_awq.",
    ]
    assert any(line.startswith("Recommended: bf16 weights and bf16 KV cache") for line in lines)


def test_a_format_that_can_not_be_built_ends_with_one_that_can(tmp_path: Path) -> None:
    done = plan(write(tmp_path, "opt-13b"), *GPU, "--precision", "fp8", "--kv-cache-precision", "bf16")
    assert done.exit_code == 1
    assert done.stdout.count("doesn't build OPTForCausalLM with quantization fp8") == 1
    assert done.stdout.splitlines()[-1].endswith("it would fit with --precision bf16 --kv-cache-precision bf16.")


def test_what_a_choice_costs_is_told_below_it(tmp_path: Path) -> None:
    llama = write(tmp_path, "llama-3.1-8b")
    done = plan(llama, *GPU, "--precision", "bf16", "--kv-cache-precision", "int8")
    assert "prefixes are not reused" in done.stdout.partition("Recommended")[2]
    (option,) = report(llama, *GPU, "--precision", "bf16", "--kv-cache-precision", "int8")["options"]
    assert "prefixes are not reused" in option["notes"][0]
