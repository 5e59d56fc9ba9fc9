from __future__ import annotations

import subprocess
import sys

import pytest

from build_engines.errors import BuildError
from build_engines.manifest import ENCODER_TARGETS, GENERATION_TARGETS
from build_engines.target import (
    ENCODER_PRECISIONS,
    KV_PRECISIONS,
    PRECISIONS,
    BuildOptions,
    check_precisions,
    find_target,
)
from tests.fixtures.errors import raises


def test_a_target_is_imported_when_it_is_asked_for() -> None:
    script = (
        "import sys\nfrom build_engines.build import BuildOptions\nfrom build_engines.target import find_target\n"
        "loaded = lambda: [name for name in sys.modules if name.startswith(('build_engines.openvino', "
        "'build_engines.tensorrt_llm', 'build_engines.llmapi'))]\n"
        "assert not loaded(), loaded()\nfind_target(BuildOptions(target='tensorrt-llm'))\n"
        "assert 'build_engines.tensorrt_llm.target' in loaded() and 'build_engines.openvino.target' not in loaded()"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@pytest.mark.parametrize("target", GENERATION_TARGETS)
def test_every_target_of_the_manifest_is_there_with_its_precisions(target: str) -> None:
    assert PRECISIONS[target]
    assert KV_PRECISIONS[target]
    find_target(BuildOptions(target=target))


@pytest.mark.parametrize("target", ENCODER_TARGETS)
def test_every_target_of_encoders_is_there_with_its_precisions(target: str) -> None:
    assert ENCODER_PRECISIONS[target]
    find_target(BuildOptions(target=target, task="embed"))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (
            BuildOptions(precision="fp8"),
            ("--precision fp8", "--target tensorrt-llm"),
        ),
        (BuildOptions(target="tensorrt-llm", precision="int4"), ("--precision int4", "--target openvino")),
        (BuildOptions(target="tensorrt-llm", kv_precision="u8"), ("--kv-cache-precision u8", "--target openvino")),
        (BuildOptions(kv_precision="int8"), ("--kv-cache-precision int8", "--target tensorrt-llm")),
        (BuildOptions(target="vulkan"), ("vulkan", "openvino, tensorrt-llm, llmapi")),
    ],
)
def test_what_a_target_lacks_is_refused_naming_one_that_has_it(options: BuildOptions, named: str) -> None:
    with raises(BuildError, "invalid_parameter", naming=named) as caught:
        check_precisions(options)
    assert "\n" not in str(caught.value)


def test_settings_of_another_target_are_refused() -> None:
    with raises(BuildError, "invalid_parameter", naming="tensorrt-llm"):
        find_target(BuildOptions(target="tensorrt-llm", settings="fp8"))
