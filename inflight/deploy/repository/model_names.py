"""Names of a repository's models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from build_engines.manifest import EncoderTask, Seq2SeqTask

BatchedTask = EncoderTask | Seq2SeqTask
"""A task whose requests are computed in batches as a whole, by the models that the commands call encoders."""
Task = Literal["generate"] | BatchedTask

ENGINE_MODEL = "tensorrt_llm"
PROCESSOR_TARGETS = ("openvino", "ctranslate2")
"""The targets whose engines compute on the processor."""
CPP_BACKEND = "tensorrtllm"
"""The name of TensorRT-LLM's C++ backend in Triton."""
TEXT_MODELS = ("ensemble", "tensorrt_llm_bls")
"""The models to which clients send text, in the order in which they are unloaded."""
ENCODER_MODELS: Mapping[BatchedTask, str] = {
    "embed": "embedding",
    "rerank": "rerank",
    "classify": "classify",
    "transcribe": "whisper",
    "text2text": "text2text",
}
"""The model of each kind of encoder."""
TASKS: tuple[Task, ...] = ("generate", *ENCODER_MODELS)
MODELS_WITH_ENGINE: dict[Task, str] = {"generate": ENGINE_MODEL}
MODELS_WITH_ENGINE.update((task, model) for task, model in ENCODER_MODELS.items())
ENTRY_MODELS: dict[Task, tuple[str, ...]] = {"generate": TEXT_MODELS}
ENTRY_MODELS.update((task, (model,)) for task, model in ENCODER_MODELS.items())
"""The models to which clients send requests, by task."""


def pbtxt_bool(value: bool) -> str:
    """Return a boolean in config.pbtxt's form."""
    return "true" if value else "false"


_OPTION_NAMES = {
    "adapters": "--lora",
    "adapter_directory": "--lora-dir",
    "max_batch_tokens": "--encoder-batch-tokens",
    "max_batch_texts": "--encoder-batch-texts",
    "max_queue_texts": "--encoder-queue-size",
    "max_wait_ms": "--encoder-max-wait-ms",
    "num_requests": "--encoder-requests",
    "encoder_threads": "--encoder-threads",
    "settings": "--set",
    "decoupled": "--no-decoupled",
    "kv_cache_reuse": "--no-kv-cache-reuse",
}


def option_name(name: str) -> str:
    """Return the command line's name of a field of DeploymentOptions or EncoderOptions."""
    return _OPTION_NAMES.get(name, "--" + name.replace("_", "-"))
