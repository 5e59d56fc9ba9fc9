"""GPUs by name: their memory and compute capability."""

from __future__ import annotations

from dataclasses import dataclass

from build_engines.errors import invalid
from build_engines.plan.size import MIB


@dataclass(frozen=True)
class GpuModel:
    """A GPU: `memory` is nvidia-smi's memory.total in bytes; `sm` is the compute capability, 89 for 8.9."""

    name: str
    title: str
    memory: int
    sm: int


def _gpu(name: str, title: str, mebibytes: int, sm: int) -> GpuModel:
    return GpuModel(name, title, mebibytes * MIB, sm)


# Memory as nvidia-smi prints it; compute capability from https://developer.nvidia.com/cuda-gpus.
GPUS = {
    card.name: card
    for card in (
        _gpu("a10", "NVIDIA A10", 23028, 86),
        _gpu("a10g", "NVIDIA A10G", 23028, 86),
        _gpu("a30", "NVIDIA A30", 24576, 80),
        _gpu("a40", "NVIDIA A40", 46068, 86),
        _gpu("a100-40gb", "NVIDIA A100-SXM4-40GB", 40960, 80),
        _gpu("a100-80gb", "NVIDIA A100-SXM4-80GB", 81920, 80),
        _gpu("a100-40gb-pcie", "NVIDIA A100-PCIE-40GB", 40960, 80),
        _gpu("a100-80gb-pcie", "NVIDIA A100 80GB PCIe", 81920, 80),
        _gpu("l4", "NVIDIA L4", 23034, 89),
        _gpu("l20", "NVIDIA L20", 46068, 89),
        _gpu("l40", "NVIDIA L40", 46068, 89),
        _gpu("l40s", "NVIDIA L40S", 46068, 89),
        _gpu("rtx-4090", "NVIDIA GeForce RTX 4090", 24564, 89),
        _gpu("rtx-5090", "NVIDIA GeForce RTX 5090", 32607, 120),
        _gpu("rtx-a6000", "NVIDIA RTX A6000", 49140, 86),
        _gpu("rtx-6000-ada", "NVIDIA RTX 6000 Ada Generation", 49140, 89),
        _gpu("rtx-pro-6000", "NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, 120),
        _gpu("h100", "NVIDIA H100 80GB HBM3", 81559, 90),
        _gpu("h100-pcie", "NVIDIA H100 PCIe", 81559, 90),
        _gpu("h100-nvl", "NVIDIA H100 NVL", 95830, 90),
        _gpu("h20", "NVIDIA H20", 97871, 90),
        _gpu("h200", "NVIDIA H200", 143771, 90),
        _gpu("gh200", "NVIDIA GH200 480GB", 97871, 90),
        _gpu("b200", "NVIDIA B200", 183359, 100),
        _gpu("b300", "NVIDIA B300 SXM6 AC", 275040, 103),
    )
}
_ALIASES = {
    "a100": "a100-80gb",
    "a100-pcie": "a100-80gb-pcie",
    "a6000": "rtx-a6000",
    "4090": "rtx-4090",
    "5090": "rtx-5090",
    "h100-sxm": "h100",
    "h100-80gb": "h100",
    "h200-141gb": "h200",
    "gh200-480gb": "gh200",
    "gh200-120gb": "gh200",
}


def find_gpu(name: str) -> GpuModel:
    """Return the GPU `name` (a key of GPUS or nvidia-smi's name); raise BuildError (`invalid_parameter`) if unknown."""
    plain = name.strip().lower().replace("_", "-").replace(" ", "-").removeprefix("nvidia-")
    for card in GPUS.values():
        title = card.title.lower().replace(" ", "-").removeprefix("nvidia-")
        if plain in (card.name, title, card.name.replace("-", "")):
            return card
    if plain in _ALIASES:
        return GPUS[_ALIASES[plain]]
    raise invalid(f"The GPU {name!r} is not known; choose one of {', '.join(GPUS)}, or set its memory with --memory.")
