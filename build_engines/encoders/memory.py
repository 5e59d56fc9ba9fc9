"""Plans the memory of an engine that embeds, reranks or classifies, from its config.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from build_engines.checkpoints.checkpoint import checkpoint_directory, map_read_errors, read_config
from build_engines.checkpoints.config_file import ConfigFile
from build_engines.encoders.settings import DECODERS, read_settings
from build_engines.manifest import EncoderTask, Seq2SeqTask
from build_engines.plan.formats import OPENVINO_WEIGHTS, WeightFormat
from build_engines.plan.gpu_memory import OVERHEAD as GPU_OVERHEAD
from build_engines.plan.model import stored_parameters
from build_engines.plan.openvino_memory import OVERHEAD
from build_engines.plan.parameters import ParameterCounts, count_parameters
from build_engines.plan.shape import read_shape
from inflight.common.micro_batch import default_batch_tokens

_PRECISIONS = ("fp32", "bf16", "int8")


@dataclass(frozen=True)
class EncoderShape:
    """Sizes of an encoder. `qkv` counts the numbers in the queries, keys and values of one token in one layer.

    `gated` layers multiply two vectors of size `inner`; `rotary` positions are computed and not looked up.
    """

    hidden: int
    inner: int
    qkv: int
    gated: bool
    rotary: bool


@dataclass(frozen=True)
class EncoderFit:
    """Bytes of one precision: weights, one micro-batch, and everything else of the server."""

    precision: str
    weights: int
    activations: int
    overhead: int
    fits: bool

    @property
    def needed(self) -> int:
        return self.weights + self.activations + self.overhead


@dataclass(frozen=True)
class EncoderPlan:
    """The memory of a model for micro-batches of `max_batch_tokens` padded tokens; there is no KV cache.

    `batch_tokens` are those of the largest micro-batch: one text of `max_seq_len` tokens may be larger than the budget.
    """

    where: str
    architecture: str
    task: EncoderTask | Seq2SeqTask
    parameters: int
    counted_from: str
    max_seq_len: int
    max_batch_tokens: int
    batch_tokens: int
    memory: int
    device: str
    fits: tuple[EncoderFit, ...]

    @property
    def recommended(self) -> EncoderFit | None:
        """The first that fits, in the order of the formats."""
        return next((fit for fit in self.fits if fit.fits), None)

    def as_json(self) -> dict[str, Any]:
        best = self.recommended
        content = asdict(self) | {"fits": [asdict(fit) | {"needed": fit.needed} for fit in self.fits]}
        return content | {"recommended": best and best.precision}


def plan_encoder(
    directory: Path,
    task: EncoderTask,
    *,
    memory: int,
    device: str,
    weights: Sequence[WeightFormat] = (),
    max_seq_len: int | None = None,
    max_batch_tokens: int | None = None,
    target: str = "openvino",
) -> EncoderPlan:
    """Return the plan of the checkpoint `directory` (or its config.json); its weights need not exist.

    On a GPU, a forward pass is counted as on the processor, which was not measured.
    Raises BuildError as `read_config` and `read_settings` do.
    """
    directory = checkpoint_directory(directory)
    with map_read_errors(directory):
        config = read_config(directory)
        longest = read_settings(directory, config, task).max_seq_len
        stored = stored_parameters(directory)
    longest = min(longest, max_seq_len or longest)
    shape, counts = read_encoder_shape(config, str(directory), task)
    total = stored or counts.total
    max_batch_tokens = max_batch_tokens or default_batch_tokens(0, target)
    tokens = max(max_batch_tokens // longest * longest, longest)
    on_gpu = target != "openvino"
    on_target = {"tensorrt": ("fp16",), "llmapi": ("bf16" if task == "embed" else "fp16",)}
    formats = weights or [OPENVINO_WEIGHTS[name] for name in on_target.get(target, _PRECISIONS)]
    overhead = GPU_OVERHEAD if on_gpu else OVERHEAD

    def fit(precision: WeightFormat) -> EncoderFit:
        size = int(precision.checkpoint_bytes(counts) * total / counts.total)
        active = activation_bytes(shape, tokens, longest, precision.name)
        return EncoderFit(precision.name, size, active, overhead, size + active + overhead <= memory)

    return EncoderPlan(
        where=str(directory),
        architecture=str(config["architectures"][0]),
        task=task,
        parameters=total,
        counted_from="weight files" if stored else "config.json",
        max_seq_len=longest,
        max_batch_tokens=max_batch_tokens,
        batch_tokens=tokens,
        memory=memory,
        device=device,
        fits=tuple(fit(precision) for precision in formats),
    )


def longest_text_bytes(config: dict[str, Any], where: str, task: EncoderTask, longest: int, precision: str) -> int:
    """Return the peak bytes of a forward pass of one text. Raises BuildError as `read_encoder_shape` does."""
    shape, _ = read_encoder_shape(config, where, task)
    return activation_bytes(shape, longest, longest, precision)


def activation_bytes(shape: EncoderShape, tokens: int, longest: int, precision: str) -> int:
    """Return the peak bytes of a forward pass over `tokens` padded tokens, in texts of `longest` tokens.

    Fitted to the growth of resident memory (docs/encoders.md): OpenVINO keeps no scores of attention, but the masks of
    models with windows or causal attention, for each pair of tokens of a text.
    """
    per_token = 8 * shape.hidden + (4 if shape.gated else 2) * shape.inner + (3 * shape.qkv if shape.rotary else 0)
    pairs = tokens * longest * (3 if shape.rotary else 0.5)
    return int((4 if precision == "fp32" else 2) * (tokens * per_token + pairs))


def read_encoder_shape(config: dict[str, Any], where: str, task: EncoderTask) -> tuple[EncoderShape, ParameterCounts]:
    """Return the shape of an encoder and its parameters; the tests compare them with transformers' classes.

    Raises BuildError (`not_a_checkpoint`) if a size is missing or invalid.
    """
    file = ConfigFile(config, where)
    if file.content["model_type"] in DECODERS:
        decoder = read_shape(config, where)
        counts = count_parameters(decoder)
        counts = ParameterCounts(counts.embedding, 0, counts.linear, counts.other, counts.channels)
        return EncoderShape(decoder.hidden, decoder.inner, decoder.qkv, True, True), counts
    hidden, inner = file.size("hidden_size"), file.size("intermediate_size")
    layers, vocab = file.size("num_hidden_layers", most=1000), file.size("vocab_size")
    head = 0 if task == "embed" else hidden * hidden
    if file.content["model_type"] == "modernbert":
        linear = layers * (4 * hidden * hidden + 3 * hidden * inner) + head
        norms = (2 * layers + 1) * hidden
        counts = ParameterCounts(vocab * hidden, 0, linear, norms, layers * (5 * hidden + 2 * inner))
        return EncoderShape(hidden, inner, 3 * hidden, True, True), counts
    linear = layers * (4 * hidden * hidden + 2 * hidden * inner) + head
    places = file.size("max_position_embeddings") + (file.optional("type_vocab_size") or 2)
    other = layers * (9 * hidden + inner) + (places + 2) * hidden
    counts = ParameterCounts(vocab * hidden, 0, linear, other, layers * (5 * hidden + inner))
    return EncoderShape(hidden, inner, 3 * hidden, False, False), counts
