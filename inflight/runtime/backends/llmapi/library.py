"""The parts of the package tensorrt_llm that the runtime uses, and the differences between 1.2 and later versions."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from typing import Any

from inflight.common.request_error import RequestError
from inflight.runtime.backends.llmapi.settings import LlmApiSettings

CONTAINER = "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"
"""Contains TensorRT-LLM 1.2.1."""
ENCODING_PLACE = "where TensorRT-LLM 1.3 or later is installed"

_FULL_SAMPLER_VERSION = (1, 3, 24)
"""From 1.3.0rc24 on, the PyTorch sampler supports penalties and bad words (upstream's sampling page)."""
_FINAL = 1 << 16


@dataclass(frozen=True)
class Sampler:
    """The sampler of an engine; `whole` if it supports everything that a request can ask for.

    Before 1.3, the default sampler silently ignores penalties, bad words, `min_tokens` and seeds, and returns log
    probabilities of the likeliest tokens only.
    """

    name: str
    is_complete: bool


@dataclass(frozen=True)
class LlmApiLibrary:
    """tensorrt_llm and its `llmapi`; `version` is (major, minor, release candidate or _FINAL)."""

    package: Any
    llmapi: Any
    version: tuple[int, int, int]

    @classmethod
    def load(cls, place: str = f"in NVIDIA's container ({CONTAINER})") -> LlmApiLibrary:
        """Import it. Raises RuntimeError that names `place`, which has it."""
        try:
            package = importlib.import_module("tensorrt_llm")
            llmapi = importlib.import_module("tensorrt_llm.llmapi")
        except ImportError as error:
            raise RuntimeError(f"TensorRT-LLM can't be imported here ({error}); serve this engine {place}") from error
        return cls(package, llmapi, _version(package.__version__))

    def sampler(self, settings: LlmApiSettings) -> Sampler:
        """Return the engine's sampler; see `_sampler_type`."""
        name = settings.arguments.get("sampler_type") or self._sampler_type(settings) or "auto"
        whole = name == "TRTLLMSampler" or self.version >= _FULL_SAMPLER_VERSION
        return Sampler(str(name), whole)

    def _sampler_type(self, settings: LlmApiSettings) -> str | None:
        """Return the C++ sampler where the PyTorch one would ignore inputs, except with speculation."""
        if self.version >= _FULL_SAMPLER_VERSION or settings.arguments.get("speculative_config"):
            return None
        return "TRTLLMSampler"

    def create_llm(self, settings: LlmApiSettings) -> Any:
        """Start the LLM and its processes; the library's errors pass through."""
        arguments = dict(settings.arguments)
        if not arguments.get("sampler_type") and (sampler_type := self._sampler_type(settings)):
            arguments["sampler_type"] = sampler_type
        return self.package.LLM(model=settings.checkpoint, **self._typed(arguments))

    def create_encoder(self, checkpoint: str, arguments: dict[str, Any]) -> Any:
        """Start an LLM that only encodes, in this process. Raises RuntimeError for a version that has none."""
        if not hasattr(self.package.LLM, "encode"):
            raise RuntimeError(
                f"TensorRT-LLM {self.package.__version__} has no LLM.encode, which came with 1.3; serve this engine"
                f" {ENCODING_PLACE}, or build it with --target tensorrt"
            )
        return self.package.LLM(model=checkpoint, **self._typed(arguments))

    def _typed(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Convert nested settings to the library's own types, with its own function if it has one."""
        try:
            utils = importlib.import_module("tensorrt_llm.llmapi.llm_utils")
        except ImportError:
            return arguments
        update = getattr(utils, "update_llm_args_with_extra_dict", None)
        typed: dict[str, Any] = arguments if update is None else update({}, arguments)
        return typed

    def sampling_params(self, arguments: dict[str, Any]) -> Any:
        """Build SamplingParams; `guide` and `bad_words` need the library's own types.

        The library's errors about values pass through.
        """
        values = dict(arguments)
        guide, bad_words = values.pop("guide", None), values.pop("bad_words", ())
        if guide is not None:
            values["guided_decoding"] = self.llmapi.GuidedDecodingParams(**guide)
        params = self.package.SamplingParams(**values)
        if bad_words:
            # No public argument takes words of several tokens: the library fills this field from their text.
            if not hasattr(type(params), "_bad_word_ids"):
                raise RequestError(
                    "bad_words_list holds words of several tokens, which this version of TensorRT-LLM takes as text"
                    " only; send words of one token",
                    "unsupported_input",
                )
            params.bad = [""] * len(bad_words)
            params._bad_word_ids = [list(word) for word in bad_words]
        return params

    def lora_request(self, **named: Any) -> Any:
        return self.llmapi.LoRARequest(**named)

    def ends_one_request(self, error: BaseException) -> bool:
        """Return whether the error concerns one answer only; any other error means that the library is dead."""
        return isinstance(error, self.llmapi.RequestError)

    def is_healthy(self, llm: Any) -> bool:
        """Return whether the library works: 1.2 reports only a shutdown, later versions check their processes too."""
        check = getattr(llm, "_check_health", None)
        if check is not None:
            return bool(check())
        executor = getattr(llm, "_executor", None)
        return executor is not None and not executor.is_shutdown()


def device_tensor(values: Any) -> Any:
    """Return an array as a tensor of PyTorch, which comes with the library, on the GPU if there is one."""
    torch = importlib.import_module("torch")
    return torch.from_numpy(values).to("cuda" if torch.cuda.is_available() else "cpu")


def _version(text: str) -> tuple[int, int, int]:
    match = re.match(r"(\d+)\.(\d+)(?:\.\d+)?(?:rc(\d+))?", text)
    if match is None:
        return (0, 0, 0)
    major, minor, candidate = match.groups()
    return int(major), int(minor), _FINAL if candidate is None else int(candidate)
