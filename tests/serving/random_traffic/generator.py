"""Draws random requests for the whole way, each with what must come of it, whatever runs beside it."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
from tokenizers import Tokenizer

from tests.serving.random_traffic.random_request import ENGINE_MODEL, KnownAnswer, RandomRequest

MAX_TOKENS = 48
LONG = 1500
"""Tokens of an answer that is to be cut short: about as many as the demo model can make behind any prompt here."""
PATTERNS = ("[a-z]{2,9}( [a-z]{2,9}){0,3}", "(yes|no|perhaps)", "[0-9]{1,4}\\.[0-9]{2}")


class RequestGenerator:
    """Draws visits from a seed."""

    def __init__(self, seed: int, models: Sequence[str], known: Sequence[KnownAnswer], tokenizer: Tokenizer) -> None:
        self._random = random.Random(seed)
        self._models = models
        self._known = known
        self._tokenizer = tokenizer
        self._numbers = iter(range(10**9))
        self._seed = seed
        self._sampled_before: list[RandomRequest] = []

    def draw(self) -> RandomRequest:
        source = self._random
        greedy = source.choice(self._known)
        visit = RandomRequest(source.choice(self._models), {}, f"{self._seed}-{next(self._numbers)}", [greedy])
        visit.values = {
            visit.name("max_tokens"): source.randint(1, min(MAX_TOKENS, len(greedy.answer))),
            visit.name("stream"): source.random() < 0.7,
            "exclude_input_in_output": True,
            "end_id": -1,
        }
        self._want(visit)
        self._decorate(visit)
        source.choice(self._KINDS)(self, visit)
        return visit

    def _length(self, visit: RandomRequest) -> int:
        return int(visit.values[visit.name("max_tokens")])

    def _answer(self, visit: RandomRequest) -> list[int]:
        """Of the first prompt."""
        return visit.prompts[0].answer[: self._length(visit)]

    def _want(self, visit: RandomRequest, length: int | None = None) -> None:
        """The first tokens of the known answers, as many as asked for or as said."""
        answers = [one.answer[: self._length(visit) if length is None else length] for one in visit.prompts]
        visit.expected = answers if visit.model == ENGINE_MODEL else [self._text(answer) for answer in answers]

    def _text(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text

    def _decorate(self, visit: RandomRequest) -> None:
        """What must change nothing."""
        source = self._random
        if source.random() < 0.3:
            visit.values["priority"] = source.choice([-5, 0, 1, 100])
        if source.random() < 0.2:
            visit.values["return_perf_metrics"] = True
        if source.random() < 0.2:
            visit.values["return_log_probs"] = True
        if source.random() < 0.2:
            visit.values["temperature"] = 0.7  # alone it changes nothing

    def _greedy(self, visit: RandomRequest) -> None:
        """As it is; a least number of tokens changes nothing where no token ends the answer."""
        if self._random.random() < 0.3:
            visit.values["min_tokens"] = self._random.randint(1, self._length(visit))

    def _batch(self, visit: RandomRequest) -> None:
        visit.prompts += self._random.sample(self._known, self._random.randint(1, 3))
        shortest = min(len(one.answer) for one in visit.prompts)
        visit.values[visit.name("max_tokens")] = min(self._length(visit), shortest)
        self._want(visit)

    def _own_end(self, visit: RandomRequest) -> None:
        """A token of the known answer ends it, or must not."""
        answer = self._answer(visit)
        end = self._random.choice(answer)
        visit.values["end_id"] = end
        if self._random.random() < 0.5:
            visit.values["min_tokens"] = len(answer)
            visit.expected = None
        else:
            self._want(visit, answer.index(end))
            visit.ends = {"stop"}

    def _sampled(self, visit: RandomRequest) -> None:
        """Half of them have a twin, of the same seed and in other company."""
        source = self._random
        if self._sampled_before and source.random() < 0.5:
            twin = source.choice(self._sampled_before)
            visit.model, visit.values, visit.prompts = twin.model, dict(twin.values), twin.prompts
            visit.expected, visit.same_seed_as = None, twin.same_seed_as
            return
        top_k = source.choice([2, 5, 40])
        visit.values |= {visit.name("top_k"): top_k, "temperature": 1.2, "seed": source.randrange(2**40)}
        if source.random() < 0.5:
            visit.values |= {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": -0.2}
        visit.expected, visit.same_seed_as = None, len(self._sampled_before)
        self._sampled_before.append(visit)

    def _guided(self, visit: RandomRequest) -> None:
        pattern = self._random.choice(PATTERNS)
        visit.values |= {"guided_decoding_guide_type": "regex", "guided_decoding_guide": pattern}
        visit.values[visit.name("max_tokens")] = MAX_TOKENS
        visit.pattern = None if visit.model == ENGINE_MODEL else pattern
        visit.expected, visit.ends = None, {"stop"}

    def _stop_word(self, visit: RandomRequest) -> None:
        """A word from the middle of the known answer cuts it there; for the engine's model, a token."""
        ids = self._answer(visit)
        if visit.model == ENGINE_MODEL:
            token = self._random.choice(ids)
            visit.values["stop_words_list"] = np.array([[[token], [1]]], np.int32)
            self._want(visit, ids.index(token))
            visit.ends = {"stop_word"}
            return
        answer = self._text(ids)
        begin = self._random.randrange(max(1, len(answer) - 3))
        word = answer[begin : begin + self._random.randint(2, 6)]
        if len(word) < 2 or "\ufffd" in answer:
            return
        visit.values["stop_words"] = word
        visit.expected = [answer[: answer.index(word)]]
        visit.ends = {"stop_word"}

    def _leave(self, visit: RandomRequest) -> None:
        """In the middle of a stream, at once, or without waiting for a whole answer."""
        visit.over_http = self._random.random() < 0.5
        visit.disconnects_after = 0
        if visit.streamed:
            self._make_long(visit)
            visit.disconnects_after = self._random.choice([0, 1, 2, 5, 15])

    def _stop(self, visit: RandomRequest) -> None:
        self._make_long(visit)
        visit.stopped_after = self._random.choice([1, 2, 5])
        visit.ends = {"cancelled", "length"}  # the answer may be whole before the stop comes

    def _deadline(self, visit: RandomRequest) -> None:
        self._make_long(visit)
        visit.values["deadline_ms"] = self._random.choice([1, 20, 100])
        visit.ends = {"deadline"}

    def _sequences(self, visit: RandomRequest) -> None:
        visit.sequences = self._random.randint(2, 3)
        visit.values["num_return_sequences"] = visit.sequences
        visit.expected = None

    def _beams(self, visit: RandomRequest) -> None:
        visit.values["beam_width"] = self._random.randint(2, 3)
        visit.values.pop("temperature", None)  # beams go without
        visit.expected = None

    def _mistake(self, visit: RandomRequest) -> None:
        visit.values[visit.name("max_tokens")] = self._random.choice([0, -1, 10**6])
        visit.refused = visit.name("max_tokens")

    def _make_long(self, visit: RandomRequest) -> None:
        visit.values |= {visit.name("max_tokens"): LONG, visit.name("stream"): True}
        visit.expected = None

    _KINDS = (
        *(_greedy, _greedy, _greedy, _greedy, _batch, _batch, _own_end, _sampled, _sampled, _guided),
        *(_stop_word, _stop_word, _leave, _leave, _stop, _deadline, _sequences, _beams, _mistake),
    )
