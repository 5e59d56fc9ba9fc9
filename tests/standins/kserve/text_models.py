"""How upstream's `ensemble` and `tensorrt_llm_bls` answer: pieces of text, each decoded for itself, and no reasons."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from tests.standins.kserve.engine import LOG_PROB, RunningRequest, StandInEngine
from tests.standins.kserve.requests import ModelRequest, RefusedError
from tests.standins.kserve.responses import ModelResponse, OutputTensor, flag_only, one, texts

NO_STREAMS = "Streaming is only supported if model is deployed using decoupled mode."
TRACEBACK = """Traceback (most recent call last):
  File "/repository/tensorrt_llm_bls/1/model.py", line 234, in execute
    for res in res_gen:
c_python_backend_utils.TritonModelException: """
"""What upstream's BLS model puts before its words, and the engine's."""
_MOMENTS = ("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns")


@dataclass
class StopWordMatcher:
    """What upstream's BLS model looks for in streamed pieces: pieces that together are one of the words."""

    words: tuple[str, ...]
    prefix: str = ""

    def found(self, piece: str) -> bool:
        for word in self.words:
            if word.startswith(self.prefix + piece):
                self.prefix += piece
                if word == self.prefix:
                    return True
            else:
                self.prefix = ""
        return False


def answer(
    engine: StandInEngine, request: ModelRequest, end_ids: tuple[int, ...], special_tokens: bool
) -> Iterator[ModelResponse]:
    """The responses of `ensemble` and `tensorrt_llm_bls`; `special_tokens` is preprocessing's parameter."""
    scripted = not request.model.steps
    if request.value("max_tokens") <= 0:
        raise ValueError("max_tokens must be a single value > 0")
    if request.value("stream", False) and not request.model.decoupled:
        raise ValueError(NO_STREAMS)
    prompt = request.value("text_input")
    # Upstream's BLS model makes up ids: a `stop` at the engine's model with the client's id reaches no request.
    name = str(uuid.uuid4()) if scripted else request.id
    run = RunningRequest(name, engine.encode(prompt, special_tokens), request.value("max_tokens"), request.cancelled)
    with engine.running(run) as tokens:
        said = _until_end(engine, request, tokens, end_ids)
        make = _streamed if request.value("stream", False) else _whole
        yield from make(engine, request, run, said, scripted)


def stop(engine: StandInEngine, request: ModelRequest) -> Iterator[ModelResponse]:
    """What the `tensorrt_llm` model behind them answers to a request to stop; it answers no others here."""
    if not request.value("stop", False):
        raise RefusedError("the stand-in's tensorrt_llm takes requests to stop and no others")
    if not request.id:
        raise RefusedError("Trying to stop a request but request ID is not provided", "INTERNAL")
    engine.stop(request.id)
    yield ModelResponse({}, final=True)


def _until_end(
    engine: StandInEngine, request: ModelRequest, tokens: Iterator[int], end_ids: tuple[int, ...]
) -> Iterator[int | None]:
    """The tokens up to an end token (None, which has no text) or a stop word's last token, which is given too."""
    words = [engine.encode(word, special=False) for word in _stop_words(request)]
    said: list[int] = []
    for token in tokens:
        if token in end_ids:
            yield None
            return
        said.append(token)
        yield token
        if any(said[-len(ids) :] == ids for ids in words):
            return


def _streamed(
    engine: StandInEngine, request: ModelRequest, run: RunningRequest, said: Iterator[int | None], scripted: bool
) -> Iterator[ModelResponse]:
    accumulates = scripted and request.model.parameters.get("accumulate_tokens") == "true"
    words = StopWordMatcher(_stop_words(request))
    so_far: list[int] = []
    token = next(said, None)
    while True:
        following = next(said, _ENDED) if token is not None else _ENDED
        new = [] if token is None else [token]
        so_far += new
        piece = engine.decode(so_far if accumulates else new)
        stopped = scripted and words.found(engine.decode(new))
        last = following is _ENDED or stopped
        # The engine's last response has Triton's flag; the BLS model sends the flag by itself, behind it.
        yield ModelResponse(_outputs(request, run, piece, so_far, len(new)), final=last and not scripted)
        if last:
            break
        token = following if isinstance(following, int) else None
    if scripted:
        yield flag_only()


def _whole(
    engine: StandInEngine, request: ModelRequest, run: RunningRequest, said: Iterator[int | None], scripted: bool
) -> Iterator[ModelResponse]:
    tokens = [token for token in said if token is not None]
    text = engine.decode(tokens)
    if scripted:
        text = _cut_behind(text, _stop_words(request))
    if not request.value("exclude_input_in_output", False):
        text = request.value("text_input") + text
    decoupled = request.model.decoupled
    yield ModelResponse(_outputs(request, run, text, tokens, len(tokens)), final=not (scripted and decoupled))
    if scripted and decoupled:
        yield flag_only()


_ENDED = object()


def _cut_behind(text: str, words: tuple[str, ...]) -> str:
    """Upstream's BLS model cuts a whole text behind the first of the words that is in it."""
    for word in words:
        place = text.find(word)
        if place >= 0:
            return text[: place + len(word)]
    return text


def _stop_words(request: ModelRequest) -> tuple[str, ...]:
    return request.inputs["stop_words"].values if "stop_words" in request.inputs else ()


def _outputs(
    request: ModelRequest, run: RunningRequest, text: str, so_far: list[int], new: int
) -> dict[str, OutputTensor]:
    outputs = {"text_output": texts(text)}
    if request.value("return_log_probs", False):
        # The executor tells those of all tokens so far with each response.
        outputs["output_log_probs"] = OutputTensor("FP32", (1, 1, len(so_far)), (LOG_PROB,) * len(so_far))
        outputs["cum_log_probs"] = OutputTensor("FP32", (1, 1), (LOG_PROB * len(so_far),))
    if request.value("return_num_input_tokens", False):
        outputs["num_input_tokens"] = one("INT32", len(run.prompt_ids))
    if request.value("return_num_output_tokens", False):
        outputs["num_output_tokens"] = one("INT32", new)
    if request.value("return_perf_metrics", False):
        moments = (run.arrival_ns, run.arrival_ns + 1000, run.first_token_ns, run.last_token_ns)
        outputs |= {name: one("INT64", moment) for name, moment in zip(_MOMENTS, moments, strict=True)}
    return outputs
