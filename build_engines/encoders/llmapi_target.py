"""The target `llmapi` for encoders: the checkpoint, its tokenizer, and the arguments of an LLM that only encodes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from build_engines.checkpoints.checkpoint import Checkpoint, read_checkpoint
from build_engines.checkpoints.config_file import ConfigFile
from build_engines.checkpoints.tokenizer_files import read_fast_tokenizer
from build_engines.encoders.export import write_encoder_tokenizer
from build_engines.encoders.graph_options import GraphOptions
from build_engines.encoders.settings import EncoderSettings
from build_engines.errors import BuildError, invalid, unsupported
from build_engines.llmapi.arguments import LlmArguments
from build_engines.llmapi.target import CHECKPOINT, DTYPES, MODEL_FILE, as_yaml, link_checkpoint
from build_engines.manifest import CompiledEncoder, Precision
from build_engines.progress import BuildProgress
from build_engines.target import BuildOptions, CacheKey, Host

_EMBEDDER = "Qwen3ForTextEmbedding"
_CLASSIFIER = "BertForSequenceClassification"
_EMBEDDERS = (_EMBEDDER, "Qwen3ForCausalLM", "Qwen3Model")
"""The architectures that `LLM.encode` runs: modeling_qwen3.py and modeling_bert.py of TensorRT-LLM 1.4.0rc1. It runs
other causal language models too, but returns the logits of their next token."""
_NOT_TRIED = (
    "The engine is untested: TensorRT-LLM loads it on a GPU when it is first served. It needs LLM.encode, which version"
    " 1.3 has; NVIDIA's Triton container 26.07 has 1.2.1."
)


@dataclass(frozen=True)
class LlmApiEncoderTarget:
    """The target `llmapi` for an encoder. `extra` are further arguments of `LLM`."""

    options: GraphOptions
    extra: dict[str, Any] = field(default_factory=dict)

    def check_supported(self, directory: Path, config: dict[str, Any]) -> None:
        self._settings(directory, config)

    def cache_key(self) -> CacheKey:
        return CacheKey([*self.options.cache_key(), self.extra])

    def host(self) -> Host:
        return Host({})

    def bytes_needed(self, checkpoint: Checkpoint) -> int:
        """Return 0: weights are linked if possible; a copy that doesn't fit fails with the system's error."""
        return 0

    def compile(self, checkpoint: Checkpoint, out: Path, progress: BuildProgress) -> CompiledEncoder:
        progress.step("Copying the checkpoint")
        task, settings = self.options.task, self._settings(checkpoint.directory, checkpoint.config)
        tokenizer = read_fast_tokenizer(checkpoint.directory)
        write_encoder_tokenizer(tokenizer, out, settings.lower_case)
        link_checkpoint(checkpoint, out / CHECKPOINT, own_code=False)
        if task == "embed":
            # By this name the library returns the hidden state of the last token, not the logits of the next one.
            config = checkpoint.config | {"architectures": [_EMBEDDER]}
            (out / CHECKPOINT / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        (out / MODEL_FILE).write_text(as_yaml(self.keywords(checkpoint)), encoding="utf-8")
        file = ConfigFile(checkpoint.config, str(checkpoint.directory), "built")
        pairs = task == "rerank" and (file.optional("type_vocab_size") or 1) > 1
        pad = tokenizer.pad_token_id
        facts = {
            "vocab_size": file.size("vocab_size"),
            "pad_id": file.optional("pad_token_id", least=0) if pad is None else pad,
            "inputs": ("input_ids", *["token_type_ids"] * pairs),
            "dimensions": file.size("hidden_size") if task == "embed" else len(settings.labels) or 1,
            "notes": (_NOT_TRIED, *settings.notes),
        }
        return self.options.compiled(settings, facts)

    def keywords(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """Return the arguments of `LLM`, without the sizes of a micro-batch, which are the deployment's."""
        longest = self._settings(checkpoint.directory, checkpoint.config).max_seq_len
        return {"encode_only": True, "dtype": DTYPES[self.options.precision], "max_seq_len": longest, **self.extra}

    def _settings(self, directory: Path, config: dict[str, Any]) -> EncoderSettings:
        task, precision = self.options.task, self.options.precision
        settings = self.options.settings_of(directory, config)
        architecture = str(config["architectures"][0])
        architectures = _EMBEDDERS if task == "embed" else (_CLASSIFIER,)
        if architecture not in architectures:
            raise _refused(directory, f"the architecture {architecture}", f"only {', '.join(architectures)} for {task}")
        if task == "embed":
            if settings.dense:
                module = Path(settings.dense[0].path).name
                raise _refused(directory, f"the module {module}", "no layers after the model")
            if settings.truncate_dim is not None:
                raise _refused(directory, f"the truncate_dim {settings.truncate_dim}", "only models with whole vectors")
            if settings.pooling != "last_token":
                raise _refused(directory, f"the pooling {settings.pooling}", "only that of the last token")
        elif (activation := config.get("hidden_act", "gelu")) != "gelu":
            raise _refused(directory, f"the hidden_act {activation}", "BERT only with gelu")
        elif precision != "fp16":
            raise invalid(
                f"TensorRT-LLM computes BERT in fp16, so --precision {precision} is not possible; leave it out."
            )
        return settings


def target(options: BuildOptions) -> LlmApiEncoderTarget:
    """Return the target for `options`, which name a task.

    Raises BuildError (`invalid_parameter`) for arguments of the LLM that are not under `extra`.
    """
    arguments = options.settings if isinstance(options.settings, LlmArguments) else LlmArguments()
    if unknown := arguments.model_dump(exclude_defaults=True, exclude={"extra"}):
        raise invalid(
            f"An engine with the task {options.task} has no argument {', '.join(unknown)}; leave it out, or pass other "
            "arguments of the LLM as extra.NAME."
        )
    # The library computes BERT in fp16, whatever its type.
    default: Precision = "bf16" if options.task == "embed" else "fp16"
    return LlmApiEncoderTarget(GraphOptions.of(options, default), dict(arguments.extra))


def model_yaml(checkpoint: Path, options: BuildOptions) -> str:
    """Return the model.yaml that a build would write. Raises BuildError as the build would; writes nothing."""
    encoder = target(options)
    return as_yaml(encoder.keywords(read_checkpoint(checkpoint, check=encoder.check_supported)))


def _refused(directory: Path, what: str, runs: str) -> BuildError:
    return unsupported(
        f"{directory} has {what}, and TensorRT-LLM's LLM.encode runs {runs}; build it with --target tensorrt or"
        " --target openvino."
    )
