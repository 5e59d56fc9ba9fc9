from __future__ import annotations

import pytest

from build_engines.cpu_precision import Processor
from build_engines.openvino import target
from build_engines.openvino.target import compute_properties


@pytest.mark.parametrize(
    ("precision", "features", "group"),
    [("int8", ("VNNI", "AVX2"), 128), ("int8", ("AMX", "VNNI"), None), ("bf16", ("VNNI",), None)],
)
def test_activations_of_int8_weights_share_scales_where_that_is_faster(
    monkeypatch: pytest.MonkeyPatch, precision: str, features: tuple[str, ...], group: int | None
) -> None:
    monkeypatch.setattr(target, "find_processor", lambda: Processor("some", 2, features))
    properties = compute_properties(precision)
    assert properties["INFERENCE_PRECISION_HINT"] == "bf16"
    assert properties.get("DYNAMIC_QUANTIZATION_GROUP_SIZE") == group
