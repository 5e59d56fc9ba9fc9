"""What `inflight tune` compares and how, and the candidates' engines."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from typing import Any

from build_engines.target import BuildOptions
from inflight.tune.settings import EngineBuild, Grid, Settings
from loadtests.plan import LoadPlan

REFERENCE = EngineBuild("fp32", "f32")
"""The engine with which answers are compared."""
OPENVINO = "openvino"
AUTO = "auto"
"""The precision that the target chooses: of the LLM API the checkpoint's own."""


@dataclass(frozen=True)
class TunePlan:
    """The candidates and the measurements.

    `source` is the checkpoint, or with `is_engine` an engine, whose precisions are then the only ones. Each candidate
    is measured alone for `trial_seconds`, the better half twice as long, and so on until `finalists` are left; these
    are measured through the server, as `load` says. With `exhaustive` all candidates are. Answers are compared with
    the reference for `quality_prompts` prompts and `quality_tokens` tokens each; 0 prompts: not at all. `golden`: the
    golden set with its hash, reference and metrics that are evaluated in place of that.
    """

    source: str
    target: str
    is_engine: bool
    grid: Grid
    load: LoadPlan
    users: int
    trial_seconds: float
    finalists: int
    exhaustive: bool = False
    quality_prompts: int = 16
    quality_tokens: int = 32
    golden: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return everything that the measurements depend on: a run goes on only with the same."""
        return {**asdict(self), "load": self.load.model_dump(mode="json")}

    def build_options(self, settings: Settings) -> BuildOptions:
        """Return how to build a candidate's engine."""
        return BuildOptions(
            target=self.target,
            # The command checks both.
            precision=None if settings.build.precision == AUTO else settings.build.precision,  # type: ignore[arg-type]
            kv_precision=settings.build.kv_precision or None,  # type: ignore[arg-type]
            smoke_test=False,
            settings=_tensorrt_llm_settings(settings) if self.target == "tensorrt-llm" else None,
        )

    def engine_name(self, settings: Settings) -> str:
        """Return the name of the directory of a candidate's engine; TensorRT-LLM compiles the limits into it."""
        if self.target != "tensorrt-llm":
            return str(settings.build)
        return f"{settings.build}-{settings.max_num_tokens}-{settings.max_num_sequences}"

    def commands(self, settings: Settings, out: str) -> list[str]:
        """Return the command lines that build (unless the source is an engine) and serve a candidate."""
        engine = self.source if self.is_engine else f"{out}/engines/{self.engine_name(settings)}"
        build = ["inflight", "build", self.source, "--target", self.target, "--precision", settings.build.precision]
        if settings.build.kv_precision:
            build += ["--kv-cache-precision", settings.build.kv_precision]
        serve = ["inflight", "serve", engine]
        limits = {"--max-num-tokens": settings.max_num_tokens}
        if self.target == "tensorrt-llm":
            build += _flags({**limits, "--max-batch-size": settings.max_num_sequences})
        else:
            serve += _flags(
                {**limits, "--max-num-sequences": settings.max_num_sequences, "--threads": settings.threads}
            )
        if settings.stream_interval > 1:
            serve += _flags({"--stream-interval": settings.stream_interval})
        return [*([] if self.is_engine else [shlex.join([*build, "--out", engine])]), shlex.join(serve)]


def _flags(values: dict[str, int]) -> list[str]:
    return [part for name, value in values.items() if value for part in (name, str(value))]


def _tensorrt_llm_settings(settings: Settings) -> object:
    from build_engines.tensorrt_llm.recipe import Limits, Recipe
    from build_engines.tensorrt_llm.target import TensorRtLlmSettings

    limits = {"max_num_tokens": settings.max_num_tokens, "max_batch_size": settings.max_num_sequences}
    return TensorRtLlmSettings(Recipe(limits=Limits(**{name: value for name, value in limits.items() if value})))
