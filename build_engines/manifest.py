"""`engine.json`: the contents and the origin of an engine directory, and their verification.

Imports only pydantic and the standard library, since serving reads it before heavy libraries are loaded.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from build_engines.engine_files import EngineFile, FileName, find_damage, refuse_links_out_of
from build_engines.errors import BuildError
from inflight.common.schema.validation_errors import first_error

FILE_NAME = "engine.json"
FORMAT = 1
GENERATION_TARGETS = ("openvino", "tensorrt-llm", "llmapi")
ENCODER_TARGETS = ("openvino", "llmapi", "tensorrt")
SEQ2SEQ_TARGETS = ("ctranslate2",)
TARGETS = tuple(dict.fromkeys((*GENERATION_TARGETS, *ENCODER_TARGETS, *SEQ2SEQ_TARGETS)))
# Engines up to this size are hashed before serving: about two seconds at 1.2 GB/s.
_HASH_LIMIT_BYTES = 2 << 30

KvPrecision = Literal["f32", "f16", "bf16", "u8"]
Precision = Literal["bf16", "fp16", "fp32", "int8", "int4"]
# Further precisions of TensorRT-LLM.
GpuPrecision = Literal["fp8", "int8_sq", "int4_awq", "w4a8_awq", "nvfp4", "int8_wo", "int4_wo"]
GpuKvPrecision = Literal["fp8", "int8"]
# Precisions that only quantized checkpoints have ("mixed": one per layer).
KeptPrecision = Literal["mxfp4", "mixed"]
KeptKvPrecision = Literal["nvfp4"]
EncoderTask = Literal["embed", "rerank", "classify"]
Seq2SeqTask = Literal["transcribe", "text2text"]
Pooling = Literal["cls", "mean", "max", "last_token"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class EngineSource(_Frozen):
    """The engine's origin: the checkpoint as named by the user, and hashes of the inputs."""

    checkpoint: str
    weights: str
    tokenizer: str
    chat_template: str | None
    options: str
    files: str = ""


class GpuLimits(_Frozen):
    """Limits of a GPU engine: requests and tokens of one step, tokens of a prompt, beams."""

    max_batch_size: int
    max_num_tokens: int
    max_input_len: int
    max_beam_width: int = 1


class EncoderLimits(_Frozen):
    """Limits of a micro-batch that an encoder for GPUs was compiled for: its texts, and its padded tokens (texts times
    the longest of them); one text may have `max_seq_len` tokens in any case."""

    max_batch_texts: int
    max_batch_tokens: int


class GpuFeatures(_Frozen):
    """Features of a GPU engine and defaults of its deployment.

    Reuse and chunked context both need `paged_context_fmha`. `speculative_decoding_mode` is trtllm-build's value.
    """

    paged_context_fmha: bool = True
    kv_cache_reuse: bool = True
    chunked_context: bool = True
    lora: bool = False
    context_logits: bool = False
    generation_logits: bool = False
    speculative_decoding_mode: str | None = None
    max_draft_len: int = 0


class GpuMachine(_Frozen):
    """Where an engine was compiled. A TensorRT engine runs only on GPUs of equal `compute_capability` ("9.0")."""

    gpu: str
    compute_capability: str
    driver: str


class SuitedTo(_Frozen):
    """The processor for which the precision was chosen, why, and what another one would give; absent if the user named
    the precision."""

    processor: str
    reason: str
    alternative: str = ""


class _CompiledModel(_Frozen):
    max_seq_len: int
    vocab_size: int
    pad_id: int | None
    properties: dict[str, Any]
    suited_to: SuitedTo | None = None
    notes: tuple[str, ...] = ()
    """What the engine can't do, as its build said."""


class CompiledEngine(_CompiledModel):
    """What its target knows of an engine that generates text.

    Any of `end_ids` ends an answer. Of `layers`, `conv_layers` are convolutions with a state of `conv_state` numbers
    instead of attention. `limits` and `features` belong to engines for GPUs.
    """

    precision: Precision | GpuPrecision | KeptPrecision
    kv_cache_precision: KvPrecision | GpuKvPrecision | KeptKvPrecision
    end_ids: list[int]
    bos_id: int | None
    layers: int
    kv_heads: int
    head_dim: int
    conv_layers: int = 0
    conv_state: int = 0
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    limits: GpuLimits | None = None
    features: GpuFeatures | None = None


class CompiledEncoder(_CompiledModel):
    """What its target knows of an engine that embeds, reranks or classifies texts.

    The compiled graph has the `inputs` [texts, tokens] and one output [texts, `dimensions`]: a pooled embedding,
    normalized to length 1 with `normalize` (before the checkpoint's truncate_dim), or logits, from which `activation`
    makes scores. `matryoshka` are the lengths to which vectors may be shortened: any if empty, none if None.
    `prompts` are texts that are put before an input (before the query of a pair), by name; `default_prompt` is the name
    of the one for inputs that name none.
    `padding_side` is where shorter texts of a batch are padded. `labels` are a classifier's, in the order of the
    logits. `limits` belong to engines that were compiled for a largest micro-batch. `longest_text_bytes` is the
    estimated memory in which one text of `max_seq_len` tokens is computed; None if the engine plans its memory itself.
    """

    task: EncoderTask
    precision: Precision
    inputs: tuple[str, ...]
    dimensions: int
    padding_side: Literal["left", "right"] = "right"
    pooling: Pooling | None = None
    normalize: bool = False
    matryoshka: tuple[int, ...] | None = None
    prompts: dict[str, str] = {}
    default_prompt: str | None = None
    activation: Literal["sigmoid", "softmax", "none"] = "none"
    labels: tuple[str, ...] = ()
    limits: EncoderLimits | None = None
    longest_text_bytes: int | None = None


class Seq2SeqText(_Frozen):
    """How an engine from text to text reads and writes. Tokens are texts of its vocabulary, since the tokenizer's ids
    may differ from the model's.

    Around the tokens of a text are those of `before` and `after`; an answer begins with `prefix`. `language_token` is
    the token of a language, with {} for its code; that of `source_language` is in `before` or `after`, and that of the
    target language comes first in the answer ("prefix") or in the source ("before"). `prompts` are texts that go before
    a text, by name. `defaults` are the model's own settings of decoding, in CTranslate2's names, and `prompt_defaults`
    those of each prompt.
    """

    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()
    language_token: str = ""
    source_language: str | None = None
    target_language_in: Literal["prefix", "before"] = "prefix"
    prompts: dict[str, str] = {}
    defaults: dict[str, int | float] = {}
    prompt_defaults: dict[str, dict[str, int | float]] = {}


class CompiledSeq2Seq(_CompiledModel):
    """What its target knows of an engine with an encoder and a decoder, which makes text from speech or from text.

    The encoder reads `max_source_len` positions: tokens, or 20 ms of audio each, from a spectrogram with `mels` bands.
    The decoder writes `max_seq_len` tokens, its prompt included. `languages` are codes such as `en`; none of a model
    for speech that is for English only, or of one for text that names no languages. `text` is None for speech.
    """

    task: Seq2SeqTask
    precision: Precision
    max_source_len: int
    mels: int | None = None
    languages: tuple[str, ...] = ()
    text: Seq2SeqText | None = None


class EngineManifest(_CompiledModel):
    """What the manifests of all engines say: the contract between building and serving.

    `max_seq_len` counts tokens: prompt and answer together, or the special tokens of a text too. `properties` are
    handed to the engine as they are. `versions` names what built it: packages, and for a TensorRT engine
    `tensorrt_llm`, `tensorrt`, `cuda` and, where it is known, `container`. `machine` belongs to compiled engines for
    GPUs.
    """

    format: Literal[1] = 1
    target: str
    name: str
    architecture: str
    machine: GpuMachine | None = None
    source: EngineSource
    files: dict[FileName, EngineFile]
    versions: dict[str, str]
    created: str

    def write(self, directory: Path) -> None:
        (directory / FILE_NAME).write_text(self.model_dump_json(indent=2) + "\n")

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Read the manifest of an engine directory.

        Raises BuildError: `engine_not_found` if it is missing, `engine_damaged` if it can't be read or parsed,
        `engine_incompatible` if another version of inflight wrote it, or if it is of another kind.
        """
        return _of_kind(read_manifest(directory), cls, directory)


class Manifest(CompiledEngine, EngineManifest):
    """The manifest of an engine that generates text."""

    task: Literal["generate"] = "generate"


class EncoderManifest(CompiledEncoder, EngineManifest):
    """The manifest of an engine that embeds, reranks or classifies texts."""


class Seq2SeqManifest(CompiledSeq2Seq, EngineManifest):
    """The manifest of an engine that transcribes speech, or makes a text from another."""


AnyEngine = Manifest | EncoderManifest | Seq2SeqManifest
_PURPOSES: dict[type[AnyEngine], str] = {
    Manifest: "generates texts",
    EncoderManifest: "embeds, reranks or classifies texts",
    Seq2SeqManifest: "transcribes speech, or translates or summarizes texts",
}
AnyManifest = TypeVar("AnyManifest", bound=EngineManifest)


def read_manifest(directory: Path) -> AnyEngine:
    """Read the manifest of an engine for any task. Raises BuildError as `Manifest.read` does."""
    path = directory / FILE_NAME
    with _map_read_errors(directory):
        if not directory.is_dir():
            raise BuildError(f"No engine directory at {directory}; {_build_hint(directory)}.", "engine_not_found")
        if not path.is_file():
            raise BuildError(
                f"{directory} has no {FILE_NAME}, so it is not an engine directory; {_build_hint(directory)}.",
                "engine_not_found",
            )
        content = path.read_bytes()
    try:
        head = _ManifestHead.model_validate_json(content)
        if head.format != FORMAT:
            raise BuildError(
                f"{path} has format {head.format}, but this inflight reads {FORMAT}; build the engine again.",
                "engine_incompatible",
            )
        kinds: dict[str, type[AnyEngine]] = {
            "generate": Manifest,
            **dict.fromkeys(get_args(Seq2SeqTask), Seq2SeqManifest),
        }
        return kinds.get(head.task, EncoderManifest).model_validate_json(content)
    except ValidationError as error:
        raise BuildError(
            f"{path} can't be read ({first_error(error)}); build the engine again.", "engine_damaged"
        ) from error


def _of_kind(manifest: AnyEngine, kind: type[AnyManifest], directory: Path) -> AnyManifest:
    if isinstance(manifest, kind):
        return manifest
    needed = next(purpose for each, purpose in _PURPOSES.items() if each is kind)
    raise BuildError(
        f"{directory} is an engine with the task {manifest.task}; name one that {needed}.",
        "engine_incompatible",
    )


def _build_hint(place: Path) -> str:
    """Return the command to build the engine from the named path if that is a checkpoint or looks like a hub name."""
    checkpoint, out = "CHECKPOINT", Path("my-engine") if place.exists() else place
    like_a_name = not place.is_absolute() and len(place.parts) == 2 and not place.parent.exists()
    if like_a_name or (place / "config.json").is_file():
        checkpoint, out = shlex.quote(str(place)), Path(f"{place.name or 'my'}-engine")
    return f"build one with `inflight build {checkpoint} --out {shlex.quote(str(out))}`"


class _ManifestHead(BaseModel):
    format: int
    task: str = "generate"


def verify(directory: Path, *, hashes: bool | None = None) -> Manifest:
    """Read the manifest of an engine that generates, and compare the directory with it, as `verify_engine` does."""
    return _of_kind(verify_engine(directory, hashes=hashes), Manifest, directory)


def verify_engine(directory: Path, *, hashes: bool | None = None) -> AnyEngine:
    """Read the manifest and compare the directory with it; return the manifest.

    Every listed file must exist with its exact size, and no symbolic link may lead out of the directory, since an
    untrusted engine could expose this machine's files. Contents are hashed if `hashes` is True, or if it is not set
    and the files are at most 2 GiB in total. Raises BuildError as `Manifest.read` does,
    `engine_damaged`, and `engine_incompatible` for a target that this version of inflight doesn't know.
    """
    manifest = read_manifest(directory)
    if manifest.target not in TARGETS:
        raise BuildError(
            f"{directory} has an engine for {manifest.target}, but this version of inflight runs only those for "
            f"{', '.join(TARGETS)}; build the engine again.",
            "engine_incompatible",
        )
    if hashes is None:
        hashes = sum(file.bytes for file in manifest.files.values()) <= _HASH_LIMIT_BYTES
    with _map_read_errors(directory):
        for name, expected in manifest.files.items():
            if damage := find_damage(directory / name, expected, hashes, "its manifest"):
                raise BuildError(f"{directory / name} {damage}; build the engine again.", "engine_damaged")
        refuse_links_out_of(directory)
    return manifest


@contextmanager
def _map_read_errors(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BuildError(
            f"The engine {directory} can't be read ({error.strerror or error}); fix that, or build the engine again.",
            "engine_damaged",
        ) from error
