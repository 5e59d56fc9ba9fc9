"""Exports a checkpoint to the files of an OpenVINO engine."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from build_engines.checkpoints.checkpoint import FURTHER_TEMPLATES, read_config
from build_engines.checkpoints.model_facts import read_special_ids
from build_engines.checkpoints.openvino_ir import MODEL, WEIGHTS, read_ir
from build_engines.checkpoints.tokenizer_files import TOKENIZER_FILES, read_fast_tokenizer, write_fast_tokenizer
from build_engines.errors import damaged, invalid
from build_engines.openvino.families import COMPARED, TASK, check_family

_MODEL_FILES = (MODEL, WEIGHTS, "config.json", "generation_config.json")
# Integer weights are compressed from bf16, whose exponent covers the values of every checkpoint.
_TORCH_TYPES = {"fp32": "float32", "fp16": "float16"}
# Number of consecutive weights that share a scale; NNCF lowers it if a row's length is not a multiple of it.
_INT4_GROUP = 128
_CACHE_DIMENSIONS = len(("batch", "KV heads", "tokens", "head size"))


@dataclass(frozen=True)
class ExportTask:
    """The settings of one export.

    `max_seq_len` is the user's, None for the model's. `properties` are the engine's, used if `smoke_test`.
    """

    checkpoint: str
    out: str
    precision: str
    max_seq_len: int | None
    properties: dict[str, Any]
    smoke_test: bool


@dataclass(frozen=True)
class ExportResult:
    """The facts about the model for the manifest. `notes` are sentences for the user."""

    max_seq_len: int
    vocab_size: int
    end_ids: list[int]
    pad_id: int | None
    bos_id: int | None
    layers: int
    kv_heads: int
    head_dim: int
    notes: list[str]
    conv_layers: int = 0
    conv_state: int = 0


def export(task: ExportTask, on_step: Callable[[str], None]) -> ExportResult:
    """Write the model, its configs and its tokenizer into `task.out`; call `on_step` with a line for each step.

    Raises BuildError for errors in the checkpoint; errors of the libraries propagate unchanged.
    """
    checkpoint, out = Path(task.checkpoint), Path(task.out)
    on_step("Loading the exporter")
    config = _read_supported_config(checkpoint)
    tokenizer = read_fast_tokenizer(checkpoint)
    length = sequence_length(task, config, tokenizer)
    on_step(f"Converting {config.architectures[0]} to OpenVINO")
    _convert(checkpoint, config, out, _TORCH_TYPES.get(task.precision, "bfloat16"))
    if task.precision in ("int8", "int4"):
        on_step(f"Compressing the weights to {task.precision}")
        _compress(out, task.precision)
    write_fast_tokenizer(tokenizer, out)
    _keep_own_files(checkpoint, out)
    facts = _result(config, out, tokenizer, length, describe_limits(config))
    if task.smoke_test:
        on_step("Testing the engine")
        smoke_test(out, task.properties, facts)
    return facts


def _read_supported_config(checkpoint: Path) -> Any:
    from transformers import AutoConfig

    check_family(checkpoint, str(read_config(checkpoint).get("model_type")))
    return AutoConfig.from_pretrained(checkpoint, trust_remote_code=False, local_files_only=True)


def _convert(checkpoint: Path, config: Any, out: Path, dtype: str) -> None:
    from optimum.exporters.openvino import utils
    from optimum.exporters.openvino.convert import export_from_model
    from optimum.intel.openvino import OVConfig
    from transformers import AutoModelForCausalLM

    utils.SKIP_CHECK_TRACE_MODELS += (config.model_type,)  # it would trace and compute everything twice more
    model = load_model(AutoModelForCausalLM, checkpoint, config=config, dtype=dtype, low_cpu_mem_usage=True)
    export_from_model(
        model=model,
        output=out,
        task=TASK,
        # Set explicitly, since the exporter compresses large models to int8 by default.
        ov_config=OVConfig(dtype="fp32"),
        stateful=True,
        patch_16bit_model=dtype != "float32",
        device="cpu",
    )


def load_model(kind: Any, checkpoint: Path, unread: tuple[str, ...] = (), **arguments: Any) -> Any:
    """Return a checkpoint's model of transformers' class `kind`.

    Raises BuildError (`checkpoint_damaged`) for missing weights, except those whose names begin with `unread`.
    """
    model, loading = kind.from_pretrained(
        checkpoint,
        trust_remote_code=False,
        local_files_only=True,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # they are named below
        **{"use_safetensors": True, **arguments},
    )
    # transformers only warns about missing weights and fills them with random ones.
    names = [*loading["missing_keys"], *(key for key, *_ in loading["mismatched_keys"])]
    if absent := [name for name in names if not name.startswith(unread)]:
        raise damaged(
            f"{checkpoint} has no weights for {len(absent)} tensors of its config.json "
            f"({min(absent)}); fetch the checkpoint again."
        )
    return model


def _compress(out: Path, precision: str) -> None:
    import openvino

    path = out / MODEL
    model = openvino.Core().read_model(path)
    compressed = compress_weights(model, precision)
    # The loaded model maps this file, so the compressed one is written to another.
    openvino.save_model(compressed, out / "compressed.xml", compress_to_fp16=False)
    del model, compressed
    (out / "compressed.xml").replace(path)
    (out / "compressed.bin").replace(path.with_suffix(".bin"))


def compress_weights(model: Any, precision: str, kept: Sequence[str] = ()) -> Any:
    """Return the OpenVINO model with weights of `precision`: int8 or int4, but not in the layers named in `kept`."""
    import nncf
    from nncf.common.utils.caching import disable_results_caching
    from nncf.quantization.algorithms.weight_compression import openvino_backend

    # For int8, one compiled model serves all matrices: a fifth of the time. For int4, results share their memory.
    uncached = nullcontext if precision == "int8" else disable_results_caching
    openvino_backend.disable_results_caching = uncached
    ignored = nncf.IgnoredScope(names=list(kept))
    if precision == "int8":
        return nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_ASYM, ignored_scope=ignored)
    return nncf.compress_weights(
        model,
        ignored_scope=ignored,
        mode=nncf.CompressWeightsMode.INT4_ASYM,
        group_size=_INT4_GROUP,
        ratio=1.0,
        # Without this, NNCF fails on the first matrix whose rows are not a multiple of the group size.
        advanced_parameters=nncf.AdvancedCompressionParameters(
            group_size_fallback_mode=nncf.GroupSizeFallbackMode.ADJUST
        ),
    )


def _keep_own_files(checkpoint: Path, out: Path) -> None:
    """Copy the checkpoint's generation config, and delete files of the libraries that an engine doesn't need."""
    if (checkpoint / "generation_config.json").is_file():
        shutil.copyfile(checkpoint / "generation_config.json", out / "generation_config.json")
    for path in out.iterdir():
        if path.is_dir():
            if path.name != FURTHER_TEMPLATES:
                shutil.rmtree(path)
        elif path.name not in _MODEL_FILES and path.name not in TOKENIZER_FILES:
            path.unlink()


def _result(config: Any, out: Path, tokenizer: Any, length: int, notes: list[str]) -> ExportResult:
    # Configs name the heads of the KV cache differently, and some models cache others than they have.
    _, kv_heads, _, head_dim = next(state for state in read_ir(out / MODEL).states if len(state) == _CACHE_DIMENSIONS)
    return ExportResult(
        max_seq_len=length,
        vocab_size=config.vocab_size,
        **asdict(read_special_ids(out, config.to_dict(), tokenizer)),
        layers=config.num_hidden_layers,
        kv_heads=kv_heads,
        head_dim=head_dim,
        conv_layers=list(getattr(config, "layer_types", None) or ()).count("conv"),
        conv_state=config.hidden_size * getattr(config, "conv_L_cache", 0),
        notes=notes,
    )


def describe_limits(config: Any) -> list[str]:
    """Return sentences about what the engine of a model can't do."""
    notes = []
    if config.model_type not in COMPARED:
        notes.append(
            f"Engines of {config.model_type} models haven't been compared with transformers; compare some answers."
        )
    if getattr(config, "attn_logit_softcapping", None):
        notes.append(
            "Paged attention has no soft-capping of scores, so the engine omits the model's, like transformers by "
            "default (attn_implementation sdpa)."
        )
    if _switches_positions(config):
        notes.append(
            f"The engine is limited to {_original_positions(config)} tokens: the model encodes positions differently "
            "beyond them, and a running batch can't switch."
        )
    return notes


def sequence_length(task: ExportTask, config: Any, tokenizer: Any) -> int:
    """Return the user's or the model's length; raise BuildError (`invalid_parameter`) if the user's is higher."""
    longest = _positions(config, tokenizer)
    if task.max_seq_len is not None and task.max_seq_len > longest:
        raise invalid(
            f"{task.checkpoint} can be built for {longest} tokens at most, so --max-seq-len "
            f"{task.max_seq_len} is too high; lower it."
        )
    return task.max_seq_len or longest


def _positions(config: Any, tokenizer: Any) -> int:
    if _switches_positions(config):
        return _original_positions(config)
    for name in ("max_position_embeddings", "max_seq_len", "seq_length"):
        if (positions := getattr(config, name, None)) is not None:
            return int(positions)
    # A tokenizer without a limit has a huge number here.
    return int(min(tokenizer.model_max_length, 1 << 20))


def _switches_positions(config: Any) -> bool:
    """Return whether the model uses LongRoPE: long texts use other frequencies than the exported ones."""
    return (getattr(config, "rope_parameters", None) or {}).get("rope_type") == "longrope"


def _original_positions(config: Any) -> int:
    inside = config.rope_parameters.get("original_max_position_embeddings")
    return int(inside or config.original_max_position_embeddings)


def smoke_test(out: Path, properties: dict[str, Any], facts: ExportResult) -> None:
    """Load the engine as in serving, and compute one token."""
    import numpy
    import openvino
    from openvino._offline_transformations import paged_attention_transformation

    core = openvino.Core()
    model = core.read_model(out / MODEL)
    paged_attention_transformation(model)
    compiled = core.compile_model(model, "CPU", properties)
    request = compiled.create_infer_request()
    values = {"input_ids": [facts.bos_id or 0], "subsequence_begins": [0, 1], "block_indices_begins": [0, 1]}
    values |= {"la.block_indices": [0, 0], "la.block_indices_begins": [0, 2]}  # of convolutions: read from, written to
    for port in compiled.inputs:
        name, dimensions = port.get_any_name(), port.partial_shape
        shape = [1 if size.is_dynamic else size.get_length() for size in dimensions]  # of a cache: one block
        if name in values:
            shape = [len(values[name])]
        tensor = openvino.Tensor(port.element_type, openvino.Shape(shape))
        tensor.data[...] = values.get(name, int(name == "max_context_len"))
        request.set_tensor(port, tensor)
    request.infer()
    logits = request.get_output_tensor(0).data
    if logits.shape[-1] != facts.vocab_size or not numpy.isfinite(logits).all():
        raise RuntimeError(f"The engine returned logits of the shape {logits.shape} that are not all finite numbers.")
