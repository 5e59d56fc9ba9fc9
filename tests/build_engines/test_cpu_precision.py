"""The processor's features, and the weight precision that suits it."""

from __future__ import annotations

import pytest

from build_engines.cpu_precision import choose_precision, find_processor, parse_processor
from build_engines.openvino.target import target
from build_engines.target import BuildOptions


@pytest.mark.parametrize(
    ("flags", "features", "precision"),
    [
        ("avx2 avx512f avx512_bf16 avx512_vnni amx_tile amx_bf16", ("AMX", "AVX-512 BF16", "VNNI", "AVX2"), "bf16"),
        ("avx2 avx512_bf16 avx_vnni", ("AVX-512 BF16", "VNNI", "AVX2"), "int8"),
        ("avx2 amx_tile", ("AVX2",), "int8"),
        ("sse2", (), "bf16"),
        (None, (), "bf16"),
    ],
)
def test_the_precision_follows_from_the_features(flags: str | None, features: tuple[str, ...], precision: str) -> None:
    text = (
        "" if flags is None else f"processor\t: 0\nmodel name\t: Some CPU: 3\nflags\t\t: fpu {flags}\nflags\t: none\n"
    )
    processor = parse_processor(text, 4)
    assert processor.features == features
    assert processor.name == ("Some CPU: 3" if text else processor.name) != ""
    assert choose_precision(processor).precision == precision


@pytest.mark.parametrize("precision", [None, "bf16", "fp32"])
def test_a_named_precision_is_kept_and_no_choice_is_recorded(precision: str | None) -> None:
    chosen = target(BuildOptions(precision=precision))  # type: ignore[arg-type]
    assert chosen.precision == (precision or choose_precision(find_processor()).precision)
    assert (chosen.choice is None) == (precision is not None)


def test_a_chosen_precision_is_recorded_with_reason_and_alternative() -> None:
    recorded = target(BuildOptions()).suited_to
    choice = choose_precision(find_processor())
    assert recorded is not None
    assert (recorded.processor, recorded.reason) == (str(find_processor()), choice.reason)
    assert recorded.alternative == choice.alternative
