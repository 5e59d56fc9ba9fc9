"""Checks deployment options against their engines."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from build_engines.manifest import Manifest, verify
from inflight.deploy.errors import DeployError, invalid
from inflight.deploy.repository.engine_set import EngineSet
from inflight.deploy.repository.model_names import PROCESSOR_TARGETS, option_name
from inflight.deploy.repository.options import (
    DeploymentOptions,
    adapter_files,
    check_readable,
    check_served_model_name,
    given_options,
)
from inflight.deploy.repository.python_backend import check_python_backend_options
from inflight.deploy.repository.tensorrt_llm.backend import read_parameters

_TOKENIZER = "tokenizer.json"


def verify_draft_engine(draft: Path, engine: Path, manifest: Manifest) -> Manifest:
    """Verify the directory `draft` and that it has the vocabulary of `engine`; return the draft's manifest.

    Raises BuildError as `verify` does, and DeployError `invalid_parameter` if a token id has different meanings in the
    two engines: every draft token would be rejected, or crash the target model.
    """
    drafting = verify(draft)
    if drafting.vocab_size != manifest.vocab_size:
        raise _mismatch(
            draft,
            f"has a vocabulary of {drafting.vocab_size:,} tokens and the engine one of {manifest.vocab_size:,}",
        )
    if not _same_vocabulary(draft, drafting, engine, manifest):
        raise _mismatch(draft, "has another tokenizer than the engine")
    return drafting


def _same_vocabulary(draft: Path, of_draft: Manifest, engine: Path, of_engine: Manifest) -> bool:
    if of_draft.files[_TOKENIZER].sha256 == of_engine.files[_TOKENIZER].sha256:
        return True
    # The same vocabulary may be in a file with another template or padding rules.
    return _vocabulary(draft) == _vocabulary(engine)


def _vocabulary(directory: Path) -> dict[str, int]:
    vocabulary: dict[str, int] = Tokenizer.from_file(str(directory / _TOKENIZER)).get_vocab(with_added_tokens=True)
    return vocabulary


def _mismatch(draft: Path, what: str) -> DeployError:
    return invalid(f"The draft engine {draft} {what}; use one built from a smaller model of the same family.")


_FOR_ALL_TASKS = ("served_model_name", "parameters", "encoders")


def check_options(options: DeploymentOptions, engines: EngineSet) -> None:
    """Check the files that options name, and options that exclude each other or don't match the engines.

    Raises BuildError for a draft engine that is missing or damaged, and DeployError `invalid_parameter`.
    """
    check_served_model_name(options.served_model_name)
    check_readable(*engines.directories.values())
    if engines.generator is not None:
        _check_generator_options(options, engines.directories["generate"], engines.generator)
    elif names := [name for name in given_options(options) if name not in _FOR_ALL_TASKS]:
        raise invalid(
            f"{', '.join(map(option_name, names))} is for an engine that generates text, and only encoders are served;"
            " leave it out."
        )
    elif options.served_model_name is not None and len(engines.encoders) > 1:
        raise invalid(
            f"The served model name {options.served_model_name!r} can't be that of {len(engines.encoders)}"
            " encoders; leave it out, and name each with `inflight build --name`."
        )
    if not engines.encoders and (names := given_options(options.encoders)):
        raise invalid(f"{', '.join(map(option_name, names))} is for encoders, and none is served; leave it out.")
    on_processor = any(manifest.target in PROCESSOR_TARGETS for manifest in engines.encoders.values())
    if options.encoders.encoder_threads is not None and not on_processor:
        raise invalid(
            f"The option {option_name('encoder_threads')} is for encoders that compute on the processor, and all that"
            " are served compute on the GPU; leave it out."
        )


_NOT_REPRODUCIBLE = {
    "draft_engine": "several tokens are computed at once then, which are rounded in another way",
    "prompt_lookup": "several tokens are computed at once then, which are rounded in another way",
    "adapter_directory": "an adapter that is loaded later changes how the others are computed",
}


def _check_reproducible(options: DeploymentOptions, manifest: Manifest) -> None:
    if (manifest.precision, manifest.kv_cache_precision) != ("fp32", "f32"):
        raise invalid(
            f"The option --reproducible needs an engine at fp32, and {manifest.name} has weights at"
            f" {manifest.precision} and a KV cache at {manifest.kv_cache_precision}; build it with --precision fp32, or"
            " leave the option out."
        )
    for name, why in _NOT_REPRODUCIBLE.items():
        if getattr(options, name):
            raise invalid(f"The option {option_name(name)} can't be used with --reproducible: {why}; leave one out.")


def _check_generator_options(options: DeploymentOptions, engine: Path, manifest: Manifest) -> None:
    if options.draft_engine is not None and options.prompt_lookup:
        raise invalid("A draft engine and prompt lookup were both given; leave one of them out.")
    if options.num_draft_tokens is not None and options.draft_engine is None and not options.prompt_lookup:
        raise invalid(
            f"A number of draft tokens ({options.num_draft_tokens}) was given without a draft engine or prompt"
            " lookup; give one of them too."
        )
    check_readable(options.draft_engine or "", *options.adapters)
    if options.adapter_directory is not None and not options.adapter_directory.is_dir():
        raise invalid(f"There is no directory {options.adapter_directory}; give one that holds LoRA adapters.")
    for path in options.adapters:
        if not all(file.is_file() for file in adapter_files(path).values()):
            raise invalid(
                f"There is no LoRA adapter at {path}; give a directory that PEFT wrote, or its safetensors file."
            )
    if options.reproducible and manifest.target == "openvino":
        _check_reproducible(options, manifest)
    if manifest.target == "tensorrt-llm":
        read_parameters(options, engine, manifest)
    else:
        check_python_backend_options(options, manifest)
    if options.draft_engine is not None:
        verify_draft_engine(options.draft_engine, engine, manifest)
