"""The target `llmapi` for encoders: the checkpoint, its tokenizer, and the arguments of an LLM that only encodes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from build_engines.checkpoints.checkpoint import Checkpoint, read_checkpoint
from build_engines.checkpoints.config_file import ConfigFile
from build_engines.checkpoints.tokenizer_files import read_fast_tokenizer
from build_engines.encoders.export import write_encoder_tokenizer
from build_engines.encoders.settings import EncoderSettings, read_settings
from build_engines.errors import BuildError
from build_engines.llmapi.arguments import LlmArguments
from build_engines.llmapi.target import CHECKPOINT, DTYPES, MODEL_FILE, as_yaml, link_checkpoint
from build_engines.manifest import EncoderTask, Precision
from build_engines.progress import BuildProgress
from build_engines.target import BuildOptions, CacheKey, CompiledEncoder, Host

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

    task: EncoderTask
    options: BuildOptions
    extra: dict[str, Any] = field(default_factory=dict)

    def check_supported(self, directory: Path, config: dict[str, Any]) -> None:
        self._settings(directory, config)

    def cache_key(self) -> CacheKey:
        said = self.options
        return CacheKey([self.task, said.precision, said.max_seq_len, said.pooling, said.normalize, self.extra])

    def host(self) -> Host:
        return Host({})

    def bytes_needed(self, checkpoint: Checkpoint) -> int:
        """Return 0: weights are linked if possible; a copy that doesn't fit fails with the system's error."""
        return 0

    def compile(self, checkpoint: Checkpoint, out: Path, progress: BuildProgress) -> CompiledEncoder:
        progress.step("Copying the checkpoint")
        settings = self._settings(checkpoint.directory, checkpoint.config)
        tokenizer = read_fast_tokenizer(checkpoint.directory)
        write_encoder_tokenizer(tokenizer, out, settings.lower_case)
        link_checkpoint(checkpoint, out / CHECKPOINT, own_code=False)
        if self.task == "embed":
            # By this name the library returns the hidden state of the last token, not the logits of the next one.
            config = checkpoint.config | {"architectures": [_EMBEDDER]}
            (out / CHECKPOINT / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        (out / MODEL_FILE).write_text(as_yaml(self.keywords(checkpoint)), encoding="utf-8")
        file = ConfigFile(checkpoint.config, str(checkpoint.directory), "built")
        pairs = self.task == "rerank" and (file.optional("type_vocab_size") or 1) > 1
        pad = tokenizer.pad_token_id
        return CompiledEncoder(
            task=self.task,
            precision=self._precision,
            max_seq_len=settings.max_seq_len,
            vocab_size=file.size("vocab_size"),
            pad_id=file.optional("pad_token_id", least=0) if pad is None else pad,
            properties={},
            inputs=("input_ids", *["token_type_ids"] * pairs),
            dimensions=file.size("hidden_size") if self.task == "embed" else len(settings.labels) or 1,
            padding_side="right",
            pooling=settings.pooling,
            normalize=settings.normalize,
            matryoshka=settings.matryoshka,
            prompts=dict(settings.prompts),
            default_prompt=settings.default_prompt,
            activation=settings.activation,
            labels=settings.labels,
            notes=(_NOT_TRIED, *settings.notes),
        )

    def keywords(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """Return the arguments of `LLM`, without the sizes of a micro-batch, which are the deployment's."""
        longest = self._settings(checkpoint.directory, checkpoint.config).max_seq_len
        return {"encode_only": True, "dtype": DTYPES[self._precision], "max_seq_len": longest, **self.extra}

    @property
    def _precision(self) -> Precision:
        # The library computes BERT in fp16, whatever its type.
        return cast(Precision, self.options.precision or ("bf16" if self.task == "embed" else "fp16"))

    def _settings(self, directory: Path, config: dict[str, Any]) -> EncoderSettings:
        said = self.options
        found = read_settings(directory, config, self.task, said.pooling, said.normalize, said.max_seq_len)
        architecture = str(config["architectures"][0])
        known = _EMBEDDERS if self.task == "embed" else (_CLASSIFIER,)
        if architecture not in known:
            raise _refused(directory, f"the architecture {architecture}", f"only {', '.join(known)} for {self.task}")
        if self.task == "embed":
            if found.dense:
                raise _refused(directory, f"the module {Path(found.dense[0].path).name}", "no layers after the model")
            if found.truncate_dim is not None:
                raise _refused(directory, f"the truncate_dim {found.truncate_dim}", "only models with whole vectors")
            if found.pooling != "last_token":
                raise _refused(directory, f"the pooling {found.pooling}", "only that of the last token")
        elif (activation := config.get("hidden_act", "gelu")) != "gelu":
            raise _refused(directory, f"the hidden_act {activation}", "BERT only with gelu")
        elif said.precision not in (None, "fp16"):
            raise BuildError(
                f"TensorRT-LLM computes BERT in fp16, so --precision {said.precision} is not possible; leave it out.",
                "invalid_parameter",
            )
        return found


def target(options: BuildOptions) -> LlmApiEncoderTarget:
    """Return the target for `options`, which name a task.

    Raises BuildError (`invalid_parameter`) for arguments of the LLM that are not under `extra`.
    """
    arguments = options.settings if isinstance(options.settings, LlmArguments) else LlmArguments()
    given = arguments.model_dump(exclude_defaults=True, exclude={"extra"})
    if given:
        raise BuildError(
            f"An engine with the task {options.task} has no argument {', '.join(given)}; leave it out, or pass other "
            "arguments of the LLM as extra.NAME.",
            "invalid_parameter",
        )
    return LlmApiEncoderTarget(cast(EncoderTask, options.task), options, dict(arguments.extra))


def model_yaml(checkpoint: Path, options: BuildOptions) -> str:
    """Return the model.yaml that a build would write. Raises BuildError as the build would; writes nothing."""
    found = target(options)
    return as_yaml(found.keywords(read_checkpoint(checkpoint, check=found.check_supported)))


def _refused(directory: Path, what: str, runs: str) -> BuildError:
    return BuildError(
        f"{directory} has {what}, and TensorRT-LLM's LLM.encode runs {runs}; build it with --target tensorrt or"
        " --target openvino.",
        "unsupported_architecture",
    )
