"""Takes an OpenVINO model as optimum and the hub's organisation OpenVINO publish it; needs OpenVINO, and no torch."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

from build_engines.checkpoints.checkpoint import FURTHER_TEMPLATES, Checkpoint, link_or_copy, read_config, read_json
from build_engines.checkpoints.model_facts import read_facts, read_special_ids
from build_engines.checkpoints.openvino_ir import MODEL, WEIGHTS, IrFacts, openvino_parts, other_precision, read_ir
from build_engines.checkpoints.tokenizer_files import TOKENIZER_FILES
from build_engines.errors import damaged, unsupported
from build_engines.manifest import Precision
from build_engines.openvino.export import ExportResult, ExportTask, describe_limits, sequence_length, smoke_test
from build_engines.openvino.target import OpenVinoTarget
from build_engines.target import BuildOptions, Host, installed_versions

_INPUTS = {"input_ids", "attention_mask", "position_ids", "beam_idx"}
_EXPORT = "`optimum-cli export openvino --task text-generation-with-past`"
_LONGEST_REASON = 200
_ORIGINAL = "name the original model, with its weights in safetensors"


@dataclass(frozen=True)
class ReadyModelTask(ExportTask):
    """As of an export; `checkpoint` is the directory of the OpenVINO model."""


@dataclass(frozen=True)
class ReadyModelTarget(OpenVinoTarget):
    """The target `openvino` for a directory whose weights are compressed already."""

    task_type: ClassVar[type[ExportTask]] = ReadyModelTask

    def check_supported(self, directory: Path, config: dict[str, Any]) -> None:
        """Raise BuildError as `OpenVinoTarget.check_supported` does, and `checkpoint_damaged` for a config.json
        of another model. The weights and the tokenizer may not be there yet."""
        ir = _read_model(directory)
        _check_generates(directory, ir, config)
        _check_sizes(directory, ir, config)

    def host(self) -> Host:
        return Host(installed_versions("openvino"))

    def bytes_needed(self, checkpoint: Checkpoint) -> int:
        """Return the size of the copy of a user's weights; a download is linked."""
        return 0 if (checkpoint.directory / WEIGHTS).is_symlink() else checkpoint.weight_bytes


def target(options: BuildOptions, directory: Path) -> ReadyModelTarget:
    """Return the target for the OpenVINO model in `directory`. Defaults: a u8 KV cache, f32 for fp32 weights.

    Raises BuildError: `invalid_parameter` for a precision that the weights don't have, `unsupported_architecture` for a
    target or a task for which there are no engines of such models, and as `read_ir` does.
    """
    if options.target not in (None, "openvino"):
        raise unsupported(
            f"{directory} has a model for OpenVINO, which --target {options.target} can't use; leave --target out, or"
            f" {_ORIGINAL}."
        )
    if options.task not in (None, "generate"):
        raise unsupported(
            f"{directory} has an OpenVINO model with the task {options.task}, and only those that generate text are"
            f" served as they are; {_ORIGINAL}."
        )
    precision = read_precision(directory)
    if options.precision not in (None, precision):
        raise other_precision(directory, precision, str(options.precision))
    kv_precision = options.kv_precision or ("f32" if precision == "fp32" else "u8")
    return ReadyModelTarget(precision, kv_precision, options.max_seq_len, options.smoke_test)


def read_precision(directory: Path) -> Precision:
    """Return the precision of the weights of an OpenVINO model. Raises BuildError as `read_ir` does."""
    return _read_model(directory).precision


def export(task: ReadyModelTask, on_step: Callable[[str], None]) -> ExportResult:
    """Link or copy the model, its configs and its tokenizer into `task.out`, and test it.

    Raises BuildError for errors in the files.
    """
    directory, out = Path(task.checkpoint), Path(task.out)
    config = read_config(directory)
    on_step(f"Taking the OpenVINO model of {config['architectures'][0]} as it is")
    link_or_copy(directory / WEIGHTS, out / WEIGHTS)
    for name in (MODEL, "config.json", "generation_config.json", *TOKENIZER_FILES):
        if (directory / name).is_file():
            shutil.copyfile(directory / name, out / name)
    for path in (directory / FURTHER_TEMPLATES).glob("*.jinja"):
        (out / FURTHER_TEMPLATES).mkdir(exist_ok=True)
        shutil.copyfile(path, out / FURTHER_TEMPLATES / path.name)
    facts = read_facts(directory, config)
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    named = {"rope_parameters": {"rope_type": rope.get("type"), **rope}, "max_position_embeddings": facts.positions}
    model, tokenizer = SimpleNamespace(**config | named), _Tokenizer(directory)
    result = ExportResult(
        max_seq_len=sequence_length(task, model, tokenizer),
        vocab_size=facts.vocab_size,
        **asdict(read_special_ids(directory, config, tokenizer)),
        layers=facts.layers,
        kv_heads=facts.kv_heads,
        head_dim=facts.head_dim,
        notes=describe_limits(model),
    )
    if task.smoke_test:
        on_step("Testing the engine")
        try:
            smoke_test(out, task.properties, result)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1][-_LONGEST_REASON:].rstrip(".")
            raise damaged(
                f"OpenVINO can't run {directory / MODEL} ({reason}); fetch it again, or export the original model with"
                f" {_EXPORT}."
            ) from error
    return result


class _Tokenizer:
    """What `read_special_ids` needs of transformers' tokenizer, from the files."""

    def __init__(self, directory: Path) -> None:
        from tokenizers import Tokenizer

        from inflight.text.chat_template import special_tokens

        self._directory = directory
        try:
            self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        except Exception as error:  # the library raises no narrower one
            raise damaged(f"{directory / 'tokenizer.json'} can't be read ({error}); fetch it again.") from error
        path = directory / "tokenizer_config.json"
        named = special_tokens(read_json(path) if path.is_file() else {}, directory)
        ids = {name: self._tokenizer.token_to_id(text) for name, text in named.items() if isinstance(text, str)}
        self.eos_token_id, self.pad_token_id, self.bos_token_id = (
            ids.get(f"{name}_token") for name in ("eos", "pad", "bos")
        )

    @cached_property
    def added_tokens_decoder(self) -> dict[int, Any]:
        decoder: dict[int, Any] = self._tokenizer.get_added_tokens_decoder()
        return decoder

    def apply_chat_template(self, messages: list[dict[str, str]], tokenize: bool) -> str:
        from inflight.text.chat_template import ChatRenderer

        renderer = ChatRenderer.from_directory(self._directory)
        assert renderer is not None, "there is no chat template"
        return renderer.render(messages, add_generation_prompt=False)


def _read_model(directory: Path) -> IrFacts:
    if (directory / MODEL).is_file():
        return read_ir(directory / MODEL)
    parts = openvino_parts(directory)
    if WEIGHTS in parts:
        raise damaged(f"{directory} has {WEIGHTS} and no {MODEL}; fetch both again.")
    raise unsupported(
        f"{directory} has an OpenVINO model in parts ({', '.join(parts)}), and only one in {MODEL} can be served; name"
        " a model that only generates text."
    )


def _check_generates(directory: Path, ir: IrFacts, config: dict[str, Any]) -> None:
    """Raise BuildError (`unsupported_architecture`) unless the model is a stateful one from ids to logits."""
    architecture = str(config["architectures"][0])
    if not architecture.endswith(("ForCausalLM", "LMHeadModel")):
        raise unsupported(
            f"{directory} has the architecture {architecture}; name a model that generates text (…ForCausalLM)."
        )
    if not ir.states:
        raise unsupported(f"{ir.path} has no KV cache as its state; export the original model with {_EXPORT}.")
    if foreign := sorted(ir.inputs.keys() - _INPUTS):
        raise unsupported(f"{ir.path} has the input {foreign[0]}; name a model whose only inputs are token ids.")
    if any(len(state) != len(("batch", "KV heads", "tokens", "head size")) for state in ir.states):
        raise unsupported(f"{ir.path} has other states than a KV cache; {_ORIGINAL}.")


def _check_sizes(directory: Path, ir: IrFacts, config: dict[str, Any]) -> None:
    """Raise BuildError (`checkpoint_damaged`) for a config.json that is not the model's."""
    facts = read_facts(directory, config)
    pairs = [
        ("vocab_size", facts.vocab_size, next((shape[-1] for shape in ir.outputs.values() if shape), 0)),
        ("num_hidden_layers", facts.layers, len(ir.states) // 2),
        *(("num_key_value_heads", facts.kv_heads, heads) for _, heads, _, _ in ir.states),
        *(("head_dim", facts.head_dim, size) for _, _, _, size in ir.states),
    ]
    for name, configured, found in pairs:
        if found not in (configured, -1):
            raise damaged(
                f"{directory / 'config.json'} is of another model than {MODEL}: its {name} is {configured}, and the"
                f" model's is {found}; fetch both again."
            )
