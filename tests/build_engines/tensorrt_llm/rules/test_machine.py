"""What GPUs compute; more of it, with a whole build around, in test_target.py."""

from __future__ import annotations

import pytest

from build_engines.capabilities.tensorrt_llm import MIN_CAPABILITY, is_computed
from build_engines.errors import BuildError
from build_engines.machine import Gpu, Machine
from build_engines.tensorrt_llm.rules.machine import check_machine
from tests.build_engines.tensorrt_llm.models import recipe_of
from tests.fixtures.errors import raises

INTEGERS = ("int8_wo", "int4_wo", "int8_sq", "int4_awq", "w4a8_awq")


def machine(capability: str) -> Machine:
    return Machine((Gpu(0, "a GPU", capability, "590.48.01", 1 << 37),), {"tensorrt_llm": "1.2.1"})


@pytest.mark.parametrize("capability", ["10.0", "10.3"])
@pytest.mark.parametrize(
    "fields", [*({"quantization": one} for one in INTEGERS), {"kv_cache_dtype": "int8", "quantization": "fp8"}]
)
def test_blackwell_in_data_centres_takes_no_integers(capability: str, fields: dict[str, str]) -> None:
    """builder.py refuses them after the calibration."""
    with raises(BuildError, "invalid_parameter", naming="fp8") as caught:
        check_machine(recipe_of(fields), machine(capability), "this machine")
    assert "int" not in str(caught.value).split("choose")[1]


@pytest.mark.parametrize("capability", ["9.0", "12.0"])
def test_other_gpus_take_them(capability: str) -> None:
    for one in INTEGERS:
        check_machine(recipe_of({"quantization": one, "kv_cache_dtype": "int8"}), machine(capability), "this machine")


def test_every_gpu_of_the_line_computes_something() -> None:
    for capability in ((8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)):
        assert is_computed("none", capability)
    assert [name for name in MIN_CAPABILITY if is_computed(name, (8, 9))] == ["fp8", "w4a8_awq"]
    assert not is_computed("fp8", (8, 6))
