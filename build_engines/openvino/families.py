"""Which architectures OpenVINO compiles: those compared with transformers, and those refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from build_engines.errors import unsupported
from build_engines.synthetic.shapes import TINY

TASK = "text-generation-with-past"

# tests/build_engines/test_parity.py compares the answers of each; docs/models.md lists them.
COMPARED = tuple(sorted({shape.model_type for shape in TINY.values()}))
_UNPAGED = "OpenVINO finds no attention in its graph that it can page"
_UNMASKED = "paged attention leaves out its {}, so answers would differ from the model's"
REFUSED = {
    "falcon_mamba": _UNPAGED,
    "gpt_neo": _UNMASKED.format("local windows"),
    "gpt_neox_japanese": _UNPAGED,
    "mamba": _UNPAGED,
    "mpt": _UNMASKED.format("position biases"),
    "phimoe": "transformers 5.0 leaves out biases of its norms",
    "xglm": _UNPAGED,
}


def check_family(checkpoint: Path, kind: str) -> None:
    """Raise BuildError (`unsupported_architecture`) unless the exporter writes models of the model_type `kind`, with
    the installed transformers, and OpenVINO computes them as transformers does."""
    if reason := REFUSED.get(kind) or _not_exported(kind):
        raise unsupported(
            f"{checkpoint} is a model of the type {kind}, which can't be compiled for OpenVINO: {reason}; choose one of"
            f" {', '.join(COMPARED)}."
        )


def _not_exported(kind: str) -> str | None:
    import optimum.exporters.openvino  # noqa: F401 (registers what OpenVINO supports)
    from optimum.exporters.tasks import TasksManager
    from packaging.version import Version
    from transformers import __version__ as installed
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    try:
        tasks = TasksManager.get_supported_tasks_for_model_type(kind, "openvino", library_name="transformers")
        exporter: Any = tasks[TASK].func
    except KeyError:
        return "its exporter does not know it"
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return "it needs code of its own, which is not run"
    least, most = (getattr(exporter, f"{end}_TRANSFORMERS_VERSION", None) for end in ("MIN", "MAX"))
    if most is not None and Version(str(most)) < Version(installed):
        return f"the exporter takes it up to transformers {most}, and {installed} is installed"
    if least is not None and Version(str(least)) > Version(installed):
        return f"the exporter takes it from transformers {least} on, and {installed} is installed"
    return None
