from __future__ import annotations

import pytest

from build_engines.containers import (
    CONTAINERS,
    DEFAULT_CONTAINER,
    ENGINE_LINE,
    container_for,
    container_from_image,
    container_from_release,
    driver_suffices,
    version_line,
)


def test_the_default_is_the_newest_one_of_the_engine_line() -> None:
    assert DEFAULT_CONTAINER.image == "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"
    assert (DEFAULT_CONTAINER.tensorrt_llm, DEFAULT_CONTAINER.tensorrt) == ("1.2.1", "10.14.1.48")
    assert version_line(DEFAULT_CONTAINER.tensorrt_llm) == ENGINE_LINE
    assert DEFAULT_CONTAINER.minimum_driver == "590.44.01"


@pytest.mark.parametrize(
    ("version", "release"),
    [("1.2.1", "26.07"), ("1.2.0", "26.03"), ("1.1.0", "26.02"), ("0.17.0.post1", "25.02"), ("1.2.9", None)],
)
def test_an_engine_names_the_newest_container_of_its_very_version(version: str, release: str | None) -> None:
    container = container_for(version)
    assert (container and container.release) == release


def test_an_image_is_known_by_its_tag_also_from_a_mirror() -> None:
    mirrored = container_from_image("registry.local/nvidia/tritonserver:25.10-trtllm-python-py3")
    assert mirrored is not None
    assert mirrored.tensorrt_llm == "1.0.0"
    assert container_from_image("nvcr.io/nvidia/tritonserver:26.07-py3") is None
    assert container_from_image("nvcr.io/nvidia/tritonserver:19.01-trtllm-python-py3") is None


def test_the_matrix_goes_from_new_to_old_and_each_row_has_its_driver() -> None:
    releases = [container.release for container in CONTAINERS]
    assert releases == sorted(releases, reverse=True)
    assert len(set(releases)) == len(releases) >= 20
    assert all(container.minimum_driver for container in CONTAINERS)
    assert container_from_release("24.08") == CONTAINERS[-1]


@pytest.mark.parametrize(
    ("driver", "minimum", "suffices"),
    [
        ("590.44.01", "590.44.01", True),
        ("590.48", "590.44.01", True),
        ("580.105.08", "580.95.05", True),
        ("580.95.05", "580.105.08", False),
        ("590.44", "590.44.01", False),
    ],
)
def test_drivers_compare_as_numbers(driver: str, minimum: str, suffices: bool) -> None:
    assert driver_suffices(driver, minimum) is suffices
