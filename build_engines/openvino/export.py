"""From a checkpoint to the files of an OpenVINO engine."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build_engines.checkpoints.tokenizer_files import (
    FURTHER_TEMPLATES,
    TOKENIZER_FILES,
    read_fast_tokenizer,
    write_fast_tokenizer,
)
from build_engines.errors import BuildError
from build_engines.openvino.tokenizer import load_tokenizer, write_openvino_tokenizer

_TASK = "text-generation-with-past"
_MODEL_FILES = ("openvino_model.xml", "openvino_model.bin", "config.json", "generation_config.json")
# Integer weights are compressed from bf16 ones: the exponent of bf16 holds every checkpoint's values.
_TORCH_TYPES = {"fp32": "float32", "fp16": "float16"}
# So many weights in a row are quantized with one scale; where a matrix' rows aren't a multiple of it, fewer are.
_INT4_GROUP = 128


@dataclass(frozen=True)
class ExportTask:
    """What to export, how, and where to.

    `max_seq_len` is what was asked for, None for what the model knows. `properties` are those of the engine,
    for the trial run if `trial`.
    """

    checkpoint: str
    out: str
    precision: str
    max_seq_len: int | None
    properties: dict[str, Any]
    smoke_test: bool


@dataclass(frozen=True)
class ExportResult:
    """What the manifest says of the model. `notes` are sentences for the user."""

    max_seq_len: int
    vocab_size: int
    end_ids: list[int]
    pad_id: int | None
    bos_id: int | None
    layers: int
    kv_heads: int
    head_dim: int
    notes: list[str]


def export(task: ExportTask, on_step: Callable[[str], None]) -> ExportResult:
    """Write the model, its configs and its tokenizer into `task.out`; `step` hears a sentence for each part.

    Raises BuildError where the checkpoint is at fault; errors of the libraries pass as they are.
    """
    checkpoint, out = Path(task.checkpoint), Path(task.out)
    on_step("Loading the exporter")
    config = _read_supported_config(checkpoint)
    tokenizer = read_fast_tokenizer(checkpoint)
    length = _sequence_length(task, config, tokenizer)
    on_step(f"Converting {config.architectures[0]} to OpenVINO")
    _convert(checkpoint, out, getattr(_torch(), _TORCH_TYPES.get(task.precision, "bfloat16")))
    if task.precision in ("int8", "int4"):
        on_step(f"Compressing the weights to {task.precision}")
        _compress(out, task.precision)
    write_fast_tokenizer(tokenizer, out)
    _keep_own_files(checkpoint, out)
    notes = [*_notes(config), *write_openvino_tokenizer(tokenizer, out)]
    facts = _result(config, out, tokenizer, length, notes)
    if task.smoke_test:
        on_step("Trying the engine")
        _smoke_test(out, task.properties, facts)
    return facts


def _torch() -> Any:
    import torch

    return torch


def _read_supported_config(checkpoint: Path) -> Any:
    import optimum.exporters.openvino  # noqa: F401 (registers what OpenVINO supports)
    from optimum.exporters.tasks import TasksManager
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    try:
        config = AutoConfig.from_pretrained(checkpoint, trust_remote_code=False, local_files_only=True)
        tasks = TasksManager.get_supported_tasks_for_model_type(
            config.model_type, exporter="openvino", library_name="transformers"
        )
    except (ValueError, KeyError) as error:
        raise _unsupported(checkpoint) from error
    if _TASK not in tasks or config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise _unsupported(checkpoint)
    return config


def _unsupported(checkpoint: Path) -> BuildError:
    return BuildError(
        f"{checkpoint} holds an architecture that the OpenVINO target can't compile; choose another checkpoint "
        "(Llama, Mistral, Qwen2, Qwen3, GPT-2, Gemma 2, Phi-3 and others work).",
        "unsupported_architecture",
    )


def _convert(checkpoint: Path, out: Path, dtype: Any) -> None:
    from optimum.exporters.openvino.convert import export_from_model
    from optimum.intel.openvino import OVConfig
    from transformers import AutoModelForCausalLM

    model, loading = AutoModelForCausalLM.from_pretrained(
        checkpoint,
        dtype=dtype,
        trust_remote_code=False,
        local_files_only=True,
        use_safetensors=True,
        low_cpu_mem_usage=True,
        output_loading_info=True,
    )
    # transformers only warns, and goes on with random weights in their place.
    absent = [*loading["missing_keys"], *(key for key, *_ in loading["mismatched_keys"])]
    if absent:
        raise BuildError(
            f"{checkpoint} lacks the weights of {len(absent)} tensors that its config.json asks for "
            f"({min(absent)}); fetch the checkpoint again.",
            "checkpoint_damaged",
        )
    export_from_model(
        model=model,
        output=out,
        task=_TASK,
        # Named, since the exporter else compresses large models to int8 by itself.
        ov_config=OVConfig(dtype="fp32"),
        stateful=True,
        patch_16bit_model=dtype != _torch().float32,
        device="cpu",
    )


def _compress(out: Path, precision: str) -> None:
    import nncf
    import openvino

    path = out / "openvino_model.xml"
    model = openvino.Core().read_model(path)
    if precision == "int8":
        compressed = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_ASYM)
    else:
        compressed = nncf.compress_weights(
            model,
            mode=nncf.CompressWeightsMode.INT4_ASYM,
            group_size=_INT4_GROUP,
            ratio=1.0,
            # Matrices of one model have rows of several lengths; by itself NNCF gives up at the first that doesn't fit.
            advanced_parameters=nncf.AdvancedCompressionParameters(
                group_size_fallback_mode=nncf.GroupSizeFallbackMode.ADJUST
            ),
        )
    # The model is mapped from the very file, so the new one is written beside it.
    openvino.save_model(compressed, out / "compressed.xml", compress_to_fp16=False)
    del model, compressed
    (out / "compressed.xml").replace(path)
    (out / "compressed.bin").replace(path.with_suffix(".bin"))


def _keep_own_files(checkpoint: Path, out: Path) -> None:
    """Take the checkpoint's own generation config, and drop what the libraries write beyond an engine's files."""
    if (checkpoint / "generation_config.json").is_file():
        shutil.copyfile(checkpoint / "generation_config.json", out / "generation_config.json")
    for path in out.iterdir():
        if path.is_dir():
            if path.name != FURTHER_TEMPLATES:
                shutil.rmtree(path)
        elif path.name not in _MODEL_FILES and path.name not in TOKENIZER_FILES:
            path.unlink()


def _result(config: Any, out: Path, tokenizer: Any, length: int, notes: list[str]) -> ExportResult:
    from transformers import GenerationConfig

    generation = GenerationConfig.from_pretrained(out, local_files_only=True)
    heads = config.num_attention_heads
    return ExportResult(
        max_seq_len=length,
        vocab_size=config.vocab_size,
        end_ids=next((ids for ids in _end_ids(generation, config, tokenizer) if ids), []),
        pad_id=_first_id(generation.pad_token_id, config.pad_token_id, tokenizer.pad_token_id),
        bos_id=_first_id(generation.bos_token_id, config.bos_token_id, tokenizer.bos_token_id),
        layers=config.num_hidden_layers,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        notes=notes,
    )


def _notes(config: Any) -> list[str]:
    notes = []
    if getattr(config, "attn_logit_softcapping", None):
        notes.append(
            "Paged attention has no soft-capping of scores, so the model's is left out, as transformers leaves it out "
            "by default (attn_implementation sdpa)."
        )
    if _switches_positions(config):
        notes.append(
            f"The model codes positions in another way beyond {_original_positions(config)} tokens, which a running "
            "batch can't change, so the engine ends there."
        )
    return notes


def _end_ids(generation: Any, config: Any, tokenizer: Any) -> Iterator[list[int]]:
    """Candidates in order of who knows best."""
    for found in (generation.eos_token_id, config.eos_token_id, tokenizer.eos_token_id):
        yield [] if found is None else sorted({found} if isinstance(found, int) else set(found))


def _first_id(*ids: int | None) -> int | None:
    return next((number for number in ids if number is not None), None)


def _sequence_length(task: ExportTask, config: Any, tokenizer: Any) -> int:
    """The asked length, or all that the model knows; raises BuildError (`invalid_parameter`) where it knows less."""
    known = _positions(config, tokenizer)
    if task.max_seq_len is not None and task.max_seq_len > known:
        raise BuildError(
            f"{task.checkpoint} can be built for {known} tokens at most, so --max-seq-len "
            f"{task.max_seq_len} is too much; lower it.",
            "invalid_parameter",
        )
    return task.max_seq_len or known


def _positions(config: Any, tokenizer: Any) -> int:
    if _switches_positions(config):
        return _original_positions(config)
    for name in ("max_position_embeddings", "max_seq_len", "seq_length"):
        if (positions := getattr(config, name, None)) is not None:
            return int(positions)
    # A tokenizer that knows no limit says so with a number beyond any model.
    return int(min(tokenizer.model_max_length, 1 << 20))


def _switches_positions(config: Any) -> bool:
    """LongRoPE takes other frequencies for all tokens once a text is long; the export holds those of short texts."""
    scaling = getattr(config, "rope_scaling", None) or {}
    return scaling.get("rope_type", scaling.get("type")) == "longrope"


def _original_positions(config: Any) -> int:
    inside = config.rope_scaling.get("original_max_position_embeddings")
    return int(inside or config.original_max_position_embeddings)


def _smoke_test(out: Path, properties: dict[str, Any], facts: ExportResult) -> None:
    """Load the engine as serving does, and have it continue one token by two."""
    import numpy
    import openvino
    import openvino_genai

    scheduler = openvino_genai.SchedulerConfig()
    scheduler.num_kv_blocks = 4
    pipeline = openvino_genai.ContinuousBatchingPipeline(str(out), load_tokenizer(out), scheduler, "CPU", **properties)
    request = openvino_genai.GenerationConfig()
    request.max_new_tokens = 2
    request.ignore_eos = True
    prompt = openvino.Tensor(numpy.array([[facts.bos_id or 0]], dtype=numpy.int64))
    handle = pipeline.add_request(0, prompt, request)
    while pipeline.has_non_finished_requests():
        pipeline.step()
    tokens = [token for output in handle.read_all() for token in output.generated_ids]
    if len(tokens) != 2 or not all(0 <= token < facts.vocab_size for token in tokens):
        raise RuntimeError(f"The engine was to generate two tokens and gave {tokens}.")
