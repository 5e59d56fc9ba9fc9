"""How upstream's `llmapi` model answers: the whole text so far, a reason as text, numbers as text."""

from __future__ import annotations

from collections.abc import Iterator

from tests.standins.kserve.engine import RunningRequest, StandInEngine
from tests.standins.kserve.requests import ModelRequest, RefusedError
from tests.standins.kserve.responses import ModelResponse, OutputTensor, texts

_MAX_TOKENS = 32
"""SamplingParams' own default."""
_MOMENTS = ("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns")


def answer(engine: StandInEngine, request: ModelRequest, end_ids: tuple[int, ...]) -> Iterator[ModelResponse]:
    if request.value("stop", False):
        _stop(engine, request)
    if len(request.inputs["text_input"].shape) > 1:
        raise ValueError("The current implementation only supports text_input being a 1D tensor.")
    streaming = request.value("streaming", False)
    if streaming and not request.model.decoupled:
        raise ValueError("Streaming is only supported in decoupled mode.")
    run = RunningRequest(
        request.id,
        engine.encode(request.value("text_input")),
        request.value("sampling_param_max_tokens", _MAX_TOKENS),
        request.cancelled,
    )
    with engine.running(run) as tokens:
        for said, reason, stop_reason in _so_far(engine, request, run, tokens, end_ids):
            if reason == "cancelled" and not streaming:
                run.gone.wait()  # upstream sends nothing more, not even that it was the end
                return
            if streaming or reason is not None:
                yield ModelResponse(
                    _outputs(request, run, engine.decode(said), reason, stop_reason), reason is not None
                )


def _stop(engine: StandInEngine, request: ModelRequest) -> None:
    if not request.id:
        raise RefusedError("A request id must be provided for request cancellation", "INTERNAL")
    engine.stop(request.id)
    raise RefusedError("Request cancelled by client", "CANCELLED")


def _so_far(
    engine: StandInEngine, request: ModelRequest, run: RunningRequest, tokens: Iterator[int], end_ids: tuple[int, ...]
) -> Iterator[tuple[list[int], str | None, str | None]]:
    """All tokens so far, and with the last ones why they are; a stop word's tokens are taken back then."""
    stops = request.inputs["sampling_param_stop"].values if "sampling_param_stop" in request.inputs else ()
    words = {word: engine.encode(word, special=False) for word in stops}
    said: list[int] = []
    for token in tokens:
        if token in end_ids:
            yield said, "stop", None
            return
        said.append(token)
        for word, ids in words.items():
            if said[-len(ids) :] == ids:
                yield said[: -len(ids)], "stop", word
                return
        if len(said) == run.max_tokens:
            yield said, "length", None
            return
        yield said, None, None
    yield said, "cancelled", None


def _outputs(
    request: ModelRequest, run: RunningRequest, text: str, reason: str | None, stop_reason: str | None
) -> dict[str, OutputTensor]:
    outputs = {"text_output": texts(text)}
    for asked, name, value in (
        ("return_finish_reason", "finish_reason", reason),
        ("return_stop_reason", "stop_reason", stop_reason),
        ("return_cumulative_logprob", "cumulative_logprob", None),
    ):
        if request.value(asked, False):
            outputs[name] = texts(str(value))
    if request.value("sampling_param_return_perf_metrics", False) and reason is not None:
        moments = (run.arrival_ns, run.arrival_ns + 1000, run.first_token_ns, run.last_token_ns)
        outputs |= {name: texts(str(moment)) for name, moment in zip(_MOMENTS, moments, strict=True)}
    return outputs
