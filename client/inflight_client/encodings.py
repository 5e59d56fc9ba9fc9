"""Results of `embed`, `rerank`, `classify` and `translate`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

from inflight_client.errors import InflightError

if TYPE_CHECKING:  # importing the client stays fast
    import numpy
    import numpy.typing

    Vectors = numpy.typing.NDArray[numpy.float32]

Result = TypeVar("Result")


@dataclass(frozen=True, eq=False, kw_only=True)
class Encodings:
    """What all results have, one value for each text (for each document of `rerank`), in the caller's order.

    `input_tokens` are the computed tokens, after truncation, with special ones and, of `rerank`, with the query's;
    `truncated` says whether a text was cut. `errors` is filled with `return_errors` only: the errors by the index of
    their text. A text with an error counts no tokens. `model` is the model's name on the server.
    """

    input_tokens: tuple[int, ...]
    truncated: tuple[bool, ...]
    errors: Mapping[int, InflightError] = field(default_factory=dict)
    model: str = ""

    @property
    def total_tokens(self) -> int:
        """The sum of `input_tokens`."""
        return sum(self.input_tokens)


@dataclass(frozen=True, eq=False)
class Embeddings(Encodings, Sequence["Vectors"]):
    """The embeddings of texts: `vectors` is a numpy array, float32 [texts, dimensions].

    It is a sequence of its rows. The row of a text with an error is NaN.
    """

    vectors: Vectors

    @property
    def dimensions(self) -> int:
        """The size of a vector."""
        return int(self.vectors.shape[1])

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, index: int | slice) -> Any:
        """Return the vector of a text; of a slice an array of vectors."""
        return self.vectors[index]

    def __iter__(self) -> Iterator[Vectors]:
        return iter(self.vectors)


@dataclass(frozen=True, eq=False)
class _Results(Encodings, Sequence[Result]):
    """A sequence of its `results`."""

    results: tuple[Result, ...]

    def __len__(self) -> int:
        return len(self.results)

    @overload
    def __getitem__(self, index: int) -> Result: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Result, ...]: ...
    def __getitem__(self, index: int | slice) -> Result | tuple[Result, ...]:
        return self.results[index]


class RankedDocument(NamedTuple):
    """A document's index in the caller's order, and its score for the query; a higher score is a better match."""

    index: int  # type: ignore[assignment]  # a tuple's method of that name is not needed
    score: float


@dataclass(frozen=True, eq=False)
class Reranking(_Results[RankedDocument]):
    """Documents by relevance: `results` are the best `top_n`, best first, by the logits where scores are rounded
    to the same number; of equal ones the first document first.

    It is a sequence of its results. `scores` has the scores of all documents in the caller's order, NaN for those with
    an error, which are not among the results.
    """

    scores: tuple[float, ...]


@dataclass(frozen=True)
class Classification:
    """The classes of a text: the best label, its score, and the scores of all labels in the model's order."""

    label: str
    score: float
    scores: Mapping[str, float]


@dataclass(frozen=True, eq=False)
class Classifications(_Results[Classification]):
    """The classes of texts, a sequence; a text with an error has the label "", the score NaN and no scores."""


@dataclass(frozen=True, eq=False)
class Translations(_Results[str]):
    """The translations or summaries of texts, a sequence; that of a text with an error is "".

    `output_tokens` are those of each, and `finish_reasons` why each ended: `stop`, or `length` if it was cut.
    """

    output_tokens: tuple[int, ...]
    finish_reasons: tuple[str, ...]
