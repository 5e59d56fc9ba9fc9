"""Reads what an encoder does with a text from the files of its checkpoint.

The files are those of sentence-transformers (`modules.json`, `config_sentence_transformers.json`,
`sentence_bert_config.json`, `config.json` of each module) and the config.json of transformers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from build_engines.checkpoints.checkpoint import checkpoint_directory, map_read_errors, read_config_file, read_json
from build_engines.checkpoints.config_file import ConfigFile
from build_engines.errors import BuildError, damaged, invalid, unsupported
from build_engines.gguf.header import is_gguf
from build_engines.manifest import EncoderTask, Pooling

Activation = Literal["sigmoid", "softmax", "none"]

DECODERS = ("qwen2", "qwen3", "llama", "mistral")
"""Model types whose tokens attend only to earlier ones; the rest of `MODEL_TYPES` attends in both directions."""
MODEL_TYPES = ("bert", "roberta", "xlm-roberta", "camembert", "modernbert", *DECODERS)

_CLASSIFIER = "ForSequenceClassification"
_HEADLESS = ("Model", "ForMaskedLM")  # and not LMHeadModel, whose types are not in MODEL_TYPES
_MODULES = "modules.json"
_MODULE_TYPES = ("Transformer", "Pooling", "Dense", "Normalize")
_OWN_SETTINGS = "config_sentence_transformers.json"
CONFIG_FILES = ("config.json", _MODULES, _OWN_SETTINGS, "sentence_*_config.json", "[0-9]_*/config.json")
"""What a plan needs of a model of the hub."""
_LONGEST = 1 << 20  # A tokenizer without a limit has a huge number here.
_POOLINGS: dict[str, Pooling] = {"cls": "cls", "mean": "mean", "max": "max", "lasttoken": "last_token"}
_ACTIVATIONS: dict[str, Activation] = {"Identity": "none", "Sigmoid": "sigmoid", "Softmax": "softmax"}
_BY_PROBLEM: dict[str, Activation] = {
    "regression": "none",
    "multi_label_classification": "sigmoid",
    "single_label_classification": "softmax",
}
_EMBEDDING = "sentence_embedding"  # what a Dense module reads and writes unless it names something else
_DENSE_ACTIVATIONS = ("Identity", "Tanh")


@dataclass(frozen=True)
class Dense:
    """A linear layer after the pooling: the directory of its weights, and `tanh` or nothing after it."""

    path: str
    tanh: bool


@dataclass(frozen=True)
class EncoderSettings:
    """What happens before and after the model. `max_seq_len` is the lowest limit of the files, in tokens.

    `lower_case` makes texts lower case before they become tokens. With `truncate_dim`, only so many first numbers of a
    vector are kept. `matryoshka` are the lengths to which the model was trained to shorten its vectors: any if empty,
    none if None. `notes` are sentences for the user.
    """

    task: EncoderTask
    max_seq_len: int
    lower_case: bool = False
    pooling: Pooling | None = None
    normalize: bool = False
    dense: tuple[Dense, ...] = ()
    truncate_dim: int | None = None
    matryoshka: tuple[int, ...] | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    activation: Activation = "none"
    labels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def find_task(directory: Path) -> Literal["generate"] | EncoderTask:
    """Return what the checkpoint `directory` (or its config.json) is for. Raises BuildError as `read_config_file` and
    `detect_task` do; a config.json without architectures is for `generate`."""
    with map_read_errors(directory):
        config = read_config_file(checkpoint_directory(directory))
        return detect_task(checkpoint_directory(directory), config) if config.get("architectures") else "generate"


def detect_task(directory: Path, config: dict[str, Any]) -> Literal["generate"] | EncoderTask:
    """Return what the checkpoint is for: its heads decide, then the files of sentence-transformers.

    A model without a head, or with one that predicts masked tokens, embeds: nothing else can be done with it.
    """
    file = ConfigFile(config, str(directory), "built")
    architecture = file.first_identifier("architectures") or ""
    if architecture.endswith(_CLASSIFIER):
        return "rerank" if len(_labels(file)) == 1 else "classify"
    if (directory / _MODULES).is_file():
        return "embed"
    supported = config.get("model_type") in MODEL_TYPES
    return "embed" if supported and architecture.endswith(_HEADLESS) else "generate"


def read_settings(
    directory: Path,
    config: dict[str, Any],
    task: EncoderTask,
    pooling: Pooling | None = None,
    normalize: bool | None = None,
    max_seq_len: int | None = None,
) -> EncoderSettings:
    """Return the settings of the checkpoint `directory` for `task`; `pooling`, `normalize` and `max_seq_len` are the
    user's.

    Raises BuildError: `unsupported_architecture` for a model or a module that can't be built, `checkpoint_damaged` and
    `not_a_checkpoint` for files that can't be read, `invalid_parameter` for options that don't fit the task.
    """
    file = ConfigFile(config, str(directory), "built")
    architecture = str(config["architectures"][0])
    for sentence in _unsupported_features(directory, file, architecture):
        raise unsupported(sentence)
    if task == "embed":
        if architecture.endswith(_CLASSIFIER):
            raise invalid(
                f"{directory} has the architecture {architecture}, which gives scores and no embeddings; build it with "
                "--task rerank or --task classify."
            )
        settings = _read_embedding(directory, file, pooling, normalize)
    else:
        if pooling is not None or normalize is not None:
            raise invalid(f"--pooling and --normalize are for --task embed; leave them out of --task {task}.")
        if not architecture.endswith(_CLASSIFIER):
            raise unsupported(
                f"{directory} has the architecture {architecture}, which gives no scores; --task {task} needs a "
                f"…{_CLASSIFIER}, and --task embed builds this one."
            )
        settings = _read_classifier(directory, file, task)
    if max_seq_len is not None and max_seq_len > settings.max_seq_len:
        raise invalid(
            f"{directory} can be built for {settings.max_seq_len} tokens at most, so --max-seq-len {max_seq_len} is"
            " too high; lower it."
        )
    return replace(settings, max_seq_len=max_seq_len or settings.max_seq_len)


def _unsupported_features(directory: Path, file: ConfigFile, architecture: str) -> Iterator[str]:
    """Yield a sentence for each part of the model that can't be built."""
    kind = file.identifier("model_type")
    if kind not in MODEL_TYPES:
        yield (
            f"{directory} has the model_type {kind} ({architecture}), which can't be built as an encoder; choose one "
            f"of {', '.join(MODEL_TYPES)}."
        )
    if is_gguf(directory):
        yield f"{directory} is in GGUF, which is built to generate text; leave --task out, or name a checkpoint."
    if quantized := file.part("quantization_config"):
        yield (
            f"{directory} is quantized already ({quantized.identifier('quant_method') or 'another method'}); build from"
            " the original weights, with --precision int8."
        )
    if (positions := file.identifier("position_embedding_type")) not in (None, "absolute"):
        yield f"{directory} has the position_embedding_type {positions}; only absolute positions can be built."
    own_code = file.part("auto_map")
    if own_code and any(name.startswith("AutoModel") for name in own_code.content):
        yield (
            f"{directory} brings its own model code (auto_map in config.json), which is not run, and the {kind} of "
            "transformers may compute something else; choose another checkpoint, or remove auto_map if you know that "
            "both are the same."
        )
    if kind not in DECODERS:
        return
    if not file.flag("is_causal", True) or file.flag("use_bidirectional_attention", False):
        yield (
            f"{directory} has a decoder with attention in both directions (is_causal or use_bidirectional_attention in "
            "config.json), which can't be built; choose another checkpoint."
        )
    # A window that no text exceeds changes nothing.
    window = file.optional("sliding_window", most=1 << 40)
    if (
        window is not None
        and file.flag("use_sliding_window", kind == "mistral")
        and window < file.size("max_position_embeddings")
    ):
        yield (
            f"{directory} has sliding-window attention in a decoder, which can't be built as an encoder; choose "
            "another checkpoint."
        )


def positions(file: ConfigFile) -> int:
    """Return the longest text that the model has positions for; RoBERTa's begin after the padding token's."""
    count = file.size("max_position_embeddings")
    if file.content["model_type"] in ("roberta", "xlm-roberta", "camembert"):
        padding = file.optional("pad_token_id", least=0)
        return count - (1 if padding is None else padding) - 1
    return count


def _read_embedding(
    directory: Path, file: ConfigFile, pooling: Pooling | None, normalize: bool | None
) -> EncoderSettings:
    own = _config_file(directory, directory / _OWN_SETTINGS)
    kind = own.identifier("model_type")
    if kind not in (None, "SentenceTransformer"):
        raise unsupported(
            f"{directory} is a {kind} of sentence-transformers, which can't be built as an embedder; choose a "
            f"SentenceTransformer, or a CrossEncoder of a …{_CLASSIFIER}."
        )
    # Its name is that of the model's kind.
    path = next(iter(sorted(directory.glob("sentence_*_config.json"))), directory / "sentence_bert_config.json")
    transformer = _config_file(path, path)
    modules = _read_modules(directory)
    default = {"pooling": "last_token" if file.content["model_type"] in DECODERS else "mean", "normalize": True}
    user = {name: value for name, value in (("pooling", pooling), ("normalize", normalize)) if value is not None}
    chosen = (modules or default) | user
    note = (
        f"The checkpoint has no files of sentence-transformers, so the engine computes the {chosen['pooling']} pooling "
        f"{'with' if chosen['normalize'] else 'without'} normalization; check that the model was trained so, or pass "
        "--pooling and --normalize."
    )
    shortened = own.optional("truncate_dim") if modules else None
    return EncoderSettings(
        "embed",
        _longest(directory, file, transformer.optional("max_seq_length")),
        transformer.flag("do_lower_case", False),
        truncate_dim=shortened,
        matryoshka=_matryoshka(file, shortened),
        notes=() if modules or user.keys() == default.keys() else (note,),
        **chosen,
        **(_prompts(directory, own) if modules else {}),
    )


def _matryoshka(file: ConfigFile, shortened: int | None) -> tuple[int, ...] | None:
    """Return the lengths of Matryoshka embeddings (arXiv:2205.13147), by the names that vLLM reads, too."""
    sizes = file.content.get("matryoshka_dimensions")
    if isinstance(sizes, list) and sizes and all(type(size) is int and size > 0 for size in sizes):
        return tuple(sorted(sizes))
    return () if shortened or file.flag("is_matryoshka", False) else None


def _read_modules(directory: Path) -> dict[str, Any] | None:
    """Return what modules.json says; None without it. Its order must be transformer, pooling, dense, normalize."""
    path = directory / _MODULES
    if not path.is_file():
        return None
    modules = read_json(path, list)
    if not all(isinstance(module, dict) and isinstance(module.get("type"), str) for module in modules):
        raise _damaged(f"{path} is not a list of modules")
    for name in (module["type"] for module in modules):
        if not name.startswith("sentence_transformers.") or name.rpartition(".")[2] not in _MODULE_TYPES:
            raise unsupported(
                f"{path} lists the module {name[:100]!r}, which can't be built; only Transformer, Pooling, Dense and "
                "Normalize of sentence-transformers can."
            )
    kinds = [module["type"].rpartition(".")[2] for module in modules]
    dense = kinds.count("Dense")
    expected = ["Transformer", "Pooling", *["Dense"] * dense, *["Normalize"] * ("Normalize" in kinds)]
    if kinds != expected:
        raise unsupported(
            f"{path} lists the modules {', '.join(kinds)}; only Transformer, Pooling, Dense and Normalize in this order"
            " can be built."
        )
    names = [module.get("path", "") for module in modules]
    if any(not isinstance(name, str) or Path(name).is_absolute() or ".." in Path(name).parts for name in names):
        raise _damaged(f"{path} has a path outside its directory")
    places = [directory / name for name in names]
    if places[0] != directory:
        raise unsupported(f"{path} has the model in {places[0].name}; only a model beside modules.json can be built.")
    return {
        "pooling": _pooling(places[1] / "config.json"),
        "dense": tuple(_dense(place) for place in places[2 : 2 + dense]),
        "normalize": "Normalize" in kinds,
    }


def _pooling(path: Path) -> Pooling:
    """Return the pooling of a module's config.json: flags, or in newer files the name."""
    config = read_json(path)
    named = config.get("pooling_mode")
    modes = [named] if isinstance(named, str) else []
    for name, value in config.items():
        if name.startswith("pooling_mode_") and value is True:
            modes.append(name.removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token"))
    if len(modes) != 1 or modes[0] not in _POOLINGS:
        raise _not_one_of(f"{path} pools {(' and '.join(modes) or 'nothing')[:100]}", _POOLINGS)
    if config.get("include_prompt", True) is not True:
        raise unsupported(
            f"{path} leaves the prompt out of the pooling (include_prompt), which can't be built; choose another "
            "checkpoint."
        )
    return _POOLINGS[modes[0]]


def _dense(place: Path) -> Dense:
    path = place / "config.json"
    config = read_json(path)
    names = [config.get(name) for name in ("module_input_name", "module_output_name")]
    if any(name not in (None, _EMBEDDING) for name in names) or config.get("use_residual"):
        raise unsupported(
            f"{path} describes a Dense module with another input or output than {_EMBEDDING}, or with a residual, which"
            " can't be built; choose another checkpoint."
        )
    activation = str(config.get("activation_function"))
    kind = activation.rpartition(".")[2]
    if kind not in _DENSE_ACTIVATIONS or not (place / "model.safetensors").is_file():
        why = f"the activation {activation[:100]}" if kind not in _DENSE_ACTIVATIONS else "no model.safetensors"
        raise unsupported(
            f"{path} describes a Dense module with {why}, which can't be built; it must have model.safetensors and "
            f"one of {', '.join(_DENSE_ACTIVATIONS)}."
        )
    return Dense(str(place), kind == "Tanh")


def _longest(directory: Path, file: ConfigFile, named: int | None) -> int:
    """Return the lowest of the limits: of the model's positions, the tokenizer and sentence-transformers."""
    path = directory / "tokenizer_config.json"
    limit = read_json(path).get("model_max_length") if path.is_file() else None
    limits = [positions(file), named, int(limit) if isinstance(limit, int | float) and 0 < limit < _LONGEST else None]
    return min(limit for limit in limits if limit is not None)


def _config_file(where: Path, path: Path) -> ConfigFile:
    """Return the file `path`, empty if it is missing; `where` names it in messages."""
    return ConfigFile(read_json(path) if path.is_file() else {}, str(where), "built")


def _prompts(directory: Path, own: ConfigFile) -> dict[str, Any]:
    prompts, default = own.content.get("prompts") or {}, own.content.get("default_prompt_name")
    right = isinstance(prompts, dict) and all(isinstance(text, str) for text in prompts.values())
    if not right or not (default is None or (isinstance(default, str) and default in prompts)):
        raise _damaged(
            f"{directory / _OWN_SETTINGS} must map prompts' names to strings, and the default must be one of them"
        )
    return {"prompts": prompts, "default_prompt": default}


def _read_classifier(directory: Path, file: ConfigFile, task: EncoderTask) -> EncoderSettings:
    labels = _labels(file)
    if task == "rerank" and len(labels) != 1:
        raise invalid(f"{directory} has {len(labels)} labels, and a reranker has one; build it with --task classify.")
    own = _config_file(directory, directory / _OWN_SETTINGS)
    return EncoderSettings(
        task,
        _longest(directory, file, None),
        activation=_activation(directory, file, own, len(labels)),
        labels=labels if task == "classify" else (),
        **_prompts(directory, own),
    )


def _labels(file: ConfigFile) -> tuple[str, ...]:
    """Return the names of the labels in the order of the logits; transformers' default is two."""
    named = file.part("id2label")
    if named is None:
        count = file.optional("num_labels", most=100_000) or 2
        return tuple(f"LABEL_{number}" for number in range(count))
    try:
        numbers = {int(key): str(value) for key, value in named.content.items()}
    except ValueError:
        numbers = {}
    if sorted(numbers) != list(range(len(named.content))):
        raise file.error("id2label does not number its labels from 0")
    return tuple(numbers[number] for number in range(len(numbers)))


def _activation(directory: Path, file: ConfigFile, own: ConfigFile, labels: int) -> Activation:
    """Return what makes scores of logits: named by sentence-transformers, by problem_type, or by the labels' number.

    Version 6 of sentence-transformers names it in its own file, and reads that first.
    """
    ours = file.part("sentence_transformers")
    named = (
        own.content.get("activation_fn")
        or (ours and ours.content.get("activation_fn"))
        or file.content.get("sbert_ce_default_activation_function")
    )
    if named is not None:
        kind = str(named).rpartition(".")[2]
        if kind not in _ACTIVATIONS:
            raise _not_one_of(f"{directory} makes scores with {str(named)[:100]}", _ACTIVATIONS)
        return _ACTIVATIONS[kind]
    default = "multi_label_classification" if labels == 1 else "single_label_classification"
    problem = file.identifier("problem_type") or default
    if problem not in _BY_PROBLEM:
        raise file.error(f"problem_type is {problem}")
    return _BY_PROBLEM[problem]


def _not_one_of(what: str, allowed: Collection[str]) -> BuildError:
    return unsupported(f"{what}, which can't be built; it must be one of {', '.join(allowed)}.")


def _damaged(what: str) -> BuildError:
    return damaged(f"{what}; fetch the checkpoint again.")
