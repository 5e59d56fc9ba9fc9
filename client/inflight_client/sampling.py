"""How a request wants its tokens chosen."""

from __future__ import annotations

from dataclasses import dataclass, fields
from numbers import Integral

from inflight_client.errors import InflightError

_LARGEST_FLOAT = 3.4e38
"""As an FP32 tensor holds it."""

_BOUNDS = {
    "temperature": (0.0, _LARGEST_FLOAT),
    "top_k": (0, 2**31 - 1),
    "top_p": (0.0, 1.0),
    "seed": (0, 2**64 - 1),
    "repetition_penalty": (1e-6, _LARGEST_FLOAT),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "min_tokens": (0, 2**31 - 1),
    "end_id": (-1, 2**31 - 1),
}
_WHOLE_NUMBERS = {"top_k", "seed", "min_tokens", "end_id"}


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters; those left None are the server's to choose, whose default is greedy decoding.

    A request samples when `temperature` > 0, `top_k` > 1 or `top_p` > 0 is given (a temperature alone is sent with
    `top_p` = 1, since TensorRT-LLM would ignore it); `temperature` = 0 and `top_k` = 1 are greedy. An `end_id` takes
    the place of the model's own end tokens; -1 means none. Values out of bounds raise InflightError
    (`invalid_parameter`) before anything is sent.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    min_tokens: int | None = None
    end_id: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None:
                continue
            if field.name in _WHOLE_NUMBERS and not isinstance(value, Integral):
                raise InflightError(f"{field.name} is {value}; it must be a whole number", "invalid_parameter")
            low, high = _BOUNDS[field.name]
            if not low <= value <= high:  # NaN never is
                raise InflightError(f"{field.name} is {value}; it must be {_in_words(low, high)}", "invalid_parameter")


def _in_words(low: float, high: float) -> str:
    return f"between {low:g} and {high:g}" if high <= 2 else f"{low:g} or more, and at most {high:g}"
