"""Plans the memory of an engine of CTranslate2, from its config.json or its model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from build_engines.checkpoints.checkpoint import checkpoint_directory, map_read_errors, read_config_file
from build_engines.checkpoints.config_file import ConfigFile
from build_engines.checkpoints.ctranslate2_model import (
    SEQ2SEQ_TASKS,
    CTranslate2Facts,
    is_ctranslate2_model,
    model_config,
    read_ctranslate2,
    seq2seq_task,
)
from build_engines.ctranslate2.describe import POSITIONS, RELATIVE_POSITIONS
from build_engines.encoders.memory import EncoderFit, EncoderPlan
from build_engines.errors import unsupported
from build_engines.plan.model import stored_parameters
from build_engines.plan.openvino_memory import OVERHEAD

PROCESSES = 2
"""The default of --encoder-requests: each holds the weights, and computes a batch."""
BATCH_CLIPS = 2
BATCH_TOKENS = 2048
"""The defaults of `inflight serve` in model_repository/whisper and text2text."""
_PROCESS = 100 * 2**20
"""A process without its model: 43 MiB for Python and the library, and what the library's kernels keep."""
_HEAD = 64
"""The size of a head of attention in nearly all of these models."""
_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "int8": 1}
_LAYERS = "{}/layer_{}/self_attention/linear_0/weight"


@dataclass(frozen=True)
class _Shape:
    """`source` and `target` are the positions of the encoder and of the decoder."""

    hidden: int
    inner: int
    encoder_layers: int
    decoder_layers: int
    vocabulary: int
    source: int
    target: int
    parameters: int

    def batch_bytes(self, inputs: int) -> int:
        """Return the most bytes that a batch takes in fp32, in the encoder or in the decoder of one beam."""
        scores = self.hidden // _HEAD * self.source
        encoder = inputs * self.source * (scores + self.inner + 4 * self.hidden)
        keys = 2 * self.decoder_layers * self.hidden * (self.source + self.target)
        return 4 * max(encoder, inputs * (keys + self.vocabulary))


def plan_seq2seq(
    directory: Path,
    *,
    memory: int,
    device: str,
    precisions: Sequence[str] = (),
    max_seq_len: int | None = None,
    max_batch_tokens: int | None = None,
) -> EncoderPlan:
    """Return the plan of a checkpoint (its weights need not exist), or of a model in CTranslate2's format.

    Raises BuildError: `unsupported_architecture` for another model, and as `read_config_file` does.
    """
    directory = checkpoint_directory(directory)
    with map_read_errors(directory):
        facts = read_ctranslate2(directory) if is_ctranslate2_model(directory) else None
        config = read_config_file(directory)
        config = model_config(facts, config) if facts else config
        task = seq2seq_task(config)
        if task is None:
            names = ", ".join(SEQ2SEQ_TASKS)
            raise unsupported(
                f"{directory} has no model with an encoder and a decoder ({names}); leave --target ctranslate2 out."
            )
        shape = _model_shape(facts) if facts else config_shape(ConfigFile(config, str(directory)))
        stored = facts.parameters if facts else stored_parameters(directory)
    if task != "transcribe" and max_seq_len is not None:
        shape = replace(shape, source=min(shape.source, max_seq_len), target=min(shape.target, max_seq_len))
    longest = shape.source
    budget = BATCH_CLIPS * longest if task == "transcribe" else max_batch_tokens or BATCH_TOKENS
    inputs = max(1, budget // longest)
    active = PROCESSES * shape.batch_bytes(inputs)
    overhead = OVERHEAD + PROCESSES * _PROCESS
    total = stored or shape.parameters

    def fit(precision: str) -> EncoderFit:
        size = PROCESSES * total * _BYTES[precision]
        return EncoderFit(precision, size, active, overhead, size + active + overhead <= memory)

    return EncoderPlan(
        where=str(directory),
        architecture=str(config["architectures"][0]),
        task=task,
        parameters=total,
        counted_from="weight files" if stored else "config.json",
        max_seq_len=longest,
        max_batch_tokens=budget,
        batch_tokens=inputs * longest,
        memory=memory,
        device=device,
        fits=tuple(map(fit, dict.fromkeys(precisions) or ("fp32", "int8"))),
    )


def _model_shape(facts: CTranslate2Facts) -> _Shape:
    layers = {
        part: next(number for number in range(1000) if _LAYERS.format(part, number) not in facts.variables)
        for part in ("encoder", "decoder")
    }
    vocabulary, hidden = (facts.size("decoder/embeddings/weight", axis) for axis in range(2))
    inner = facts.size("encoder/layer_0/ffn/linear_0/weight", 0)
    source, target = (
        facts.size(name, 0) if (name := f"{part}/{POSITIONS}") in facts.variables else RELATIVE_POSITIONS
        for part in ("encoder", "decoder")
    )
    return _Shape(hidden, inner, layers["encoder"], layers["decoder"], vocabulary, source, target, facts.parameters)


def config_shape(config: ConfigFile) -> _Shape:
    """Return what a checkpoint's config.json says. Raises BuildError (`checkpoint_damaged`) for sizes that can't be."""
    hidden, vocabulary = config.size("d_model", "hidden_size"), config.size("vocab_size")
    encoder = config.size("encoder_layers", "num_layers", most=1000)
    decoder = config.optional("decoder_layers", "num_decoder_layers", most=1000) or encoder
    inner = config.size("encoder_ffn_dim", "d_ff")
    source = config.optional("max_source_positions", "max_position_embeddings", "n_positions") or RELATIVE_POSITIONS
    target = config.optional("max_target_positions") or source
    heads, of_head = config.optional("num_heads") or 0, config.optional("d_kv") or 0
    attention = 4 * hidden * (heads * of_head or hidden)
    gated = str(config.content.get("feed_forward_proj", "")).startswith("gated")
    layer = (3 if gated else 2) * hidden * inner
    bands = config.optional("num_mel_bins")
    tables = vocabulary * hidden * (1 if config.flag("tie_word_embeddings", True) else 2)
    convolutions = 3 * hidden * (bands + hidden) if bands else 0
    total = tables + convolutions + encoder * (attention + layer) + decoder * (2 * attention + layer)
    return _Shape(hidden, inner, encoder, decoder, vocabulary, source, target, total)
