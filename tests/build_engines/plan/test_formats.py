from __future__ import annotations

import pytest

from build_engines.errors import BuildError
from build_engines.plan.formats import GPU_WEIGHTS, OPENVINO_WEIGHTS, kv_format, weight_format
from build_engines.plan.parameters import ParameterCounts
from tests.fixtures.errors import raises

PARAMETERS = ParameterCounts(embedding=1000, output=1000, linear=128_000, other=100, channels=50)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("bf16", 2 * 130_100),
        ("fp8", 128_000 + 2 * 2100),
        ("int8_wo", 128_000 + 2 * 50 + 2 * 2100),
        ("int4_awq", 64_000 + 2 * 1000 + 2 * 2100),
        ("nvfp4", 64_000 + 8000 + 2 * 2100),
    ],
)
def test_quantization_leaves_embedding_output_and_the_rest_at_16_bits(name: str, size: int) -> None:
    assert GPU_WEIGHTS[name].checkpoint_bytes(PARAMETERS) == size


def test_openvino_quantizes_embedding_and_output_too() -> None:
    assert OPENVINO_WEIGHTS["int8"].checkpoint_bytes(PARAMETERS) == 128_000 + 3 * 50 + 2000 + 2 * 100
    assert OPENVINO_WEIGHTS["int4"].checkpoint_bytes(PARAMETERS) == 64_000 + 2500 + 2000 + 2 * 100


@pytest.mark.parametrize(("name", "expected"), [("int4-awq", "int4_awq"), ("INT8", "int8_wo"), ("bfloat16", "bf16")])
def test_names_are_taken_as_people_write_them(name: str, expected: str) -> None:
    assert weight_format(name, openvino=False).name == expected


def test_int8_on_a_processor_is_openvinos() -> None:
    assert weight_format("int8", openvino=True) is OPENVINO_WEIGHTS["int8"]


@pytest.mark.parametrize(("name", "embedded"), [("fp8", True), ("int3", False), ("fp32", False)])
def test_an_unknown_precision_names_the_known_ones(name: str, embedded: bool) -> None:
    with raises(BuildError, "invalid_parameter", naming=(name, "bf16")):
        weight_format(name, openvino=embedded)


@pytest.mark.parametrize(("name", "embedded"), [("fp8", True), ("u8", False)])
def test_each_target_has_kv_formats_of_its_own(name: str, embedded: bool) -> None:
    with raises(BuildError, "invalid_parameter", naming="--kv-cache-precision"):
        kv_format(name, openvino=embedded)
    assert kv_format(name, openvino=not embedded).number == 1
