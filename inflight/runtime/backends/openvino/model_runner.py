"""The embedded engine on OpenVINO: a `ModelRunner` that plans forward passes, and samples from their logits."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from inflight.common.request_error import RequestError
from inflight.runtime.backends.openvino.beam_search import BeamSearch, check_beam_search
from inflight.runtime.backends.openvino.block_pool import BlockPool
from inflight.runtime.backends.openvino.guides import Guides
from inflight.runtime.backends.openvino.paged_model import BLOCK_TOKENS, PagedModel
from inflight.runtime.backends.openvino.sampler import Choice, Sampler
from inflight.runtime.backends.openvino.sampling_state import Logits, SamplingState
from inflight.runtime.backends.openvino.sequence import Sequence
from inflight.runtime.backends.openvino.speculation import Speculation
from inflight.runtime.backends.openvino.step_cost import StepCost
from inflight.runtime.engine.interface import EngineOptions, StepOutput
from inflight.runtime.engine.request_values import check_sampling
from inflight.runtime.messages import EngineLimits, FinishReason, GenerationRequest, tenant_of
from inflight.text.tokenizer import load_tokenizer

MIN_PROMPT_TOKENS = 16
"""Tokens of prompts that a step computes beside running answers, however long it takes."""
MAX_SCORED_TOKENS = 128
"""Tokens of a prompt whose log probabilities are computed in a step, each from logits of the whole vocabulary."""


class _Planned(NamedTuple):
    """Part of a step: the next tokens of a sequence, a draft behind them, and who waits for the same prompt."""

    sequence: Sequence
    length: int
    draft: tuple[int, ...] = ()
    followers: tuple[Sequence, ...] = ()


@dataclass(frozen=True)
class EngineManifest:
    """The fields of engine.json that the engine uses; `properties` are passed to the library unchanged."""

    vocabulary_size: int
    max_seq_len: int
    end_ids: tuple[int, ...]
    properties: dict[str, Any]

    @classmethod
    def from_directory(cls, engine_dir: str) -> EngineManifest:
        content = json.loads((Path(engine_dir) / "engine.json").read_text(encoding="utf-8"))
        return cls(content["vocab_size"], content["max_seq_len"], tuple(content["end_ids"]), content["properties"])


class OpenVinoModelRunner:
    """Runs an engine directory of `inflight build --target openvino`; needs its engine.json.

    `extra` are properties of OpenVINO, before those of the engine. Raises ValueError for options that it refuses.
    """

    def __init__(self, options: EngineOptions) -> None:
        manifest = EngineManifest.from_directory(options.model_dir)
        blocks = -(-options.kv_cache_tokens // BLOCK_TOKENS)
        self.limits = EngineLimits(
            vocabulary_size=manifest.vocabulary_size,
            max_seq_len=manifest.max_seq_len,
            kv_block_tokens=BLOCK_TOKENS,
            kv_blocks=blocks,
            max_num_sequences=options.max_num_sequences,
        )
        self._options = options
        properties = _properties(manifest, options)
        self._load = partial(PagedModel, options.model_dir, blocks, properties, reproducible=options.reproducible)
        self._adapters = options.adapters
        self._models = [self._load(options.adapters)]
        self.prefilled = 0
        self._pool = BlockPool(blocks)
        self._sampler = Sampler(manifest.vocabulary_size, options.threads)
        self._speculation = self._load_speculation(options, manifest)
        self._cost = StepCost()
        self._end_ids = manifest.end_ids
        with suppress(Exception):  # reading the vocabulary takes half a second; the first guide raises the error again
            _ = self._guides
        self._running: dict[int, list[Sequence]] = {}
        self._searches: dict[int, BeamSearch] = {}

    def _load_speculation(self, options: EngineOptions, manifest: EngineManifest) -> Speculation | None:
        if not (options.draft_dir or options.prompt_lookup):
            return None
        if options.draft_dir and options.prompt_lookup:
            raise ValueError("a deployment speculates with a draft model or by prompt lookup; choose one")
        if options.num_draft_tokens < 1:
            raise ValueError(f"num_draft_tokens is {options.num_draft_tokens}; it must be 1 or more")
        if options.draft_dir:
            draft = EngineManifest.from_directory(options.draft_dir)
            if draft.vocabulary_size != manifest.vocabulary_size:
                raise ValueError(
                    f"the draft model {options.draft_dir} has {draft.vocabulary_size} tokens in its vocabulary and"
                    f" {options.model_dir} has {manifest.vocabulary_size}; choose one with the same tokenizer"
                )
            self._models.append(PagedModel(options.draft_dir, self.limits.kv_blocks, _properties(draft, options)))
        if any(model.has_states for model in self._models):
            raise ValueError(
                f"{options.draft_dir or options.model_dir} has convolutions, whose states can't go back behind a"
                " proposed token that the model refuses; leave speculation out"
            )
        return Speculation(options.num_draft_tokens, self._pool, self._sampler, *self._models[1:])

    @cached_property
    def _guides(self) -> Guides:
        if not self._end_ids:
            raise RequestError("this model has no end token, which a guide needs; leave it out", "unsupported_input")
        return Guides(load_tokenizer(self._options.model_dir), self.limits.vocabulary_size, self._end_ids)

    def prepare_adapter(self, path: str) -> Callable[[], None]:
        """Compile the model with a further adapter; the KV cache stays."""
        adapters = (*self._adapters, path)
        model = self._load(adapters, self._models[0].caches)

        def use() -> None:
            self._models[0], self._adapters = model, adapters

        return use

    def check(self, request: GenerationRequest) -> None:
        check_sampling(request.sampling)
        if request.sampling.beam_width > 1:
            check_beam_search(request)
        if not 0 <= request.adapter <= (have := len(self._adapters)):
            raise RequestError(
                f"lora_task_id is {request.adapter} and this deployment has"
                f" {f'the adapters 1 to {have}' if have else 'no adapters'}; choose one of them, or leave it out",
                "invalid_parameter",
            )
        if request.guide is not None:
            self._guides.start(request.guide)

    def add(self, handle: int, request: GenerationRequest) -> None:
        state = SamplingState(request)
        if request.guide is not None:
            state.guided = self._guides.start(request.guide)
        if request.sampling.beam_width > 1:
            self._searches[handle] = BeamSearch(request)
        tenant = "" if self._options.share_prefixes else tenant_of(request.metadata)
        self._running[handle] = [Sequence(handle, request, state, self._options.kv_cache_reuse, tenant)]

    def remove(self, handle: int) -> None:
        for sequence in self._running.pop(handle):
            self._publish(sequence)
            self._pool.release(sequence.blocks)
        self._searches.pop(handle, None)
        if self._speculation is not None:
            self._speculation.forget(handle)

    def step(self) -> Iterator[StepOutput]:
        """Compute all that decode, and prompts in the rest of the step; return output for those that got a token."""
        decoding = [each for sequences in self._running.values() for each in sequences if each.decoding]
        drafts = self._drafts(decoding)
        planned = [_Planned(each, 1, tuple(drafts.get(each.handle, ()))) for each in decoding]
        planned += self._prompts(sum(1 + len(each.draft) for each in planned))
        if not planned:
            return
        self.prefilled += sum(each.length for each in planned[len(decoding) :])
        chunks = [each.sequence.chunk(each.length, self._pool, each.draft) for each in planned]
        started = time.perf_counter()
        logits = self._models[0].forward(chunks)
        tokens, seconds = sum(len(chunk.tokens) for chunk in chunks), time.perf_counter() - started
        self._cost.add(tokens, seconds)
        if self._speculation is not None:
            if len(planned) == len(decoding):
                self._speculation.observe(len(planned), tokens - len(planned), seconds)
            prompts = [each.sequence for each in planned[len(decoding) :]]
            self._speculation.compute(chunks[len(decoding) :], prompts)
        yield from self._outputs(planned, logits)

    def _drafts(self, decoding: list[Sequence]) -> dict[int, list[int]]:
        if self._speculation is None:
            return {}
        return self._speculation.propose([each for each in decoding if each.handle not in self._searches])

    def _prompts(self, used: int) -> list[_Planned]:
        """Return the parts of prompts to compute beside `used` other tokens, each prompt and each block once."""
        room = max(self._options.max_num_tokens - used, 1)
        if used and self._options.itl_bound:
            spare, price = (self._options.itl_bound - 1) * self._cost.seconds(used), self._cost.per_token
            room = min(room, max(int(spare / price) if price else 0, MIN_PROMPT_TOKENS))
        planned: dict[object, _Planned] = {}
        computing: set[bytes] = set()
        for sequence, *_ in self._running.values():
            if sequence.decoding:
                continue
            key: object = sequence.handle
            if self._options.kv_cache_reuse and not sequence.scores:
                key = sequence.prompt_key
                if (leader := planned.get(key)) is not None:
                    planned[key] = leader._replace(followers=(*leader.followers, sequence))
                    continue
                sequence.find_known(self._pool, 2 if self._options.reproducible else 1)
            count = min(sequence.waiting, room) if self._options.chunked_context else sequence.waiting
            if sequence.scores:
                count = min(count, MAX_SCORED_TOKENS)
            if self._options.reproducible:
                count = _whole_blocks(count, sequence.waiting)
            if room < 1 or (count > room and planned):
                break
            begun = sequence.uncomputed(count)
            if begun and begun[0] in computing and not sequence.scores:
                continue
            computing.update(begun)
            planned[key] = _Planned(sequence, count)
            room -= count
        return list(planned.values())

    def _outputs(self, planned: list[_Planned], logits: Logits) -> Iterator[StepOutput]:
        rows: list[int] = []
        states: list[SamplingState] = []
        sampled: list[tuple[Sequence, tuple[int, ...]]] = []
        searched: dict[int, list[int]] = {}
        row = 0
        for sequence, count, draft, followers in planned:
            sequence.computed += count
            self._publish(sequence)
            if sequence.scores:
                row += self._score(sequence, count, logits[row:])
            if sequence.waiting:
                continue
            for each in (sequence, *followers):
                if each is not sequence:
                    each.follow(sequence, self._pool, self._models)
                if each.handle in self._searches:
                    searched.setdefault(each.handle, []).append(row)
                    continue
                sampled.append((each, draft))
                rows += range(row, row + 1 + len(draft))
                states += [each.sampling.ahead(draft[:length]) for length in range(1 + len(draft))]
            row += 1 + len(draft)
        of_searches = {handle: self._sampler.log_probs(logits[places]) for handle, places in searched.items()}
        own = logits if rows == list(range(len(logits))) else logits[rows]
        choices = iter(self._sampler.sample(own, states) if states else ())
        for sequence, draft in sampled:
            yield self._output(sequence, draft, [next(choices) for _ in range(1 + len(draft))])
        for handle, log_probs in of_searches.items():
            if (output := self._advance(handle, log_probs)) is not None:
                yield output

    def _score(self, sequence: Sequence, count: int, logits: Logits) -> int:
        """Note the log probabilities of the prompt's tokens behind the last `count` computed ones; return how many."""
        begin = sequence.computed - count + 1
        tokens = sequence.tokens[begin : begin + count]
        sequence.prompt_log_probs += self._sampler.log_probs_of(logits[: len(tokens)], tokens, sequence.request)
        return len(tokens)

    def _output(self, sequence: Sequence, draft: tuple[int, ...], choices: list[Choice]) -> StepOutput:
        """Take the chosen tokens, until one is not that of the draft or ends the answer."""
        request, state = sequence.request, sequence.sampling
        tokens, reason, error = [], None, None
        # A complete guided answer ends by one of the model's own end tokens.
        end_ids = request.end_ids if state.guided is None else (*request.end_ids, *self._end_ids)
        for choice, guess in zip(choices, (*draft, None), strict=True):
            if choice.token in end_ids:
                reason = FinishReason.STOP
                break
            try:
                if choice.token < 0:
                    raise _no_token(state)
                if state.guided is not None:
                    state.guided.take(choice.token)
            except RequestError as refusal:
                reason, error = FinishReason.ERROR, (str(refusal), refusal.code)
                break
            tokens.append(choice.token)
            state.generated.append(choice.token)
            if len(state.generated) == request.max_tokens:
                reason = FinishReason.LENGTH
                break
            if choice.token != guess:
                break
        sequence.tokens += tokens
        accepted = sum(token == guess for token, guess in zip(tokens, draft, strict=False))
        sequence.computed += accepted
        speculation = None
        if self._speculation is not None:
            self._speculation.verified(sequence, len(draft), accepted)
            speculation = self._speculation.stats(sequence.handle)
        if reason is not None:
            self.remove(sequence.handle)
        log_probs = tuple(each.log_prob for each in choices[: len(tokens)] if each.log_prob is not None)
        of_prompt, sequence.prompt_log_probs = tuple(sequence.prompt_log_probs), []
        details = (log_probs, (), speculation, error, of_prompt, sequence.reused)
        return StepOutput(sequence.handle, tuple(tokens), reason, *details)

    def _advance(self, handle: int, log_probs: Logits) -> StepOutput | None:
        """Go on with a beam search; beams that continue the same one share its blocks."""
        search, before = self._searches[handle], self._running[handle]
        begins = not before[0].decoding
        parents = search.advance(log_probs)
        if not parents:
            self.remove(handle)
            return search.output(handle)
        for place in set(range(len(before))).difference(parents):
            self._pool.release(before[place].blocks)
        first = {parent: place for place, parent in reversed(list(enumerate(parents)))}
        beams = [
            before[parent] if first[parent] == place else before[parent].fork(self._pool, self._models)
            for place, parent in enumerate(parents)
        ]
        for beam, token in zip(beams, search.last_tokens, strict=True):
            beam.tokens.append(token)
        self._running[handle] = beams
        return StepOutput(handle, ()) if begins else None

    def _publish(self, sequence: Sequence) -> None:
        computed = sequence.computed if self._speculation is None else self._speculation.known(sequence)
        if self._options.reproducible:  # what a prompt has is not computed one by one
            computed = min(computed, len(sequence.request.prompt_ids))
        sequence.publish(self._pool, computed)


def _whole_blocks(count: int, waiting: int) -> int:
    """Return how many of the waiting tokens to compute, about `count`: whole blocks, and not all but one.

    The library has other kernels for a single token, and for parts of blocks.
    """
    if count >= waiting:
        return waiting
    count = max(count // BLOCK_TOKENS, 1) * BLOCK_TOKENS
    return count if waiting - count > 1 else count - BLOCK_TOKENS or waiting


def _no_token(state: SamplingState) -> RequestError:
    guide = state.guided.error if state.guided is not None else ""
    why = (
        f"the guide can't go on: {guide}; simplify it"
        if guide
        else "guide, bad words and biases leave no token; allow more"
    )
    return RequestError(why, "invalid_parameter")


def _properties(manifest: EngineManifest, options: EngineOptions) -> dict[str, object]:
    threads = {"INFERENCE_NUM_THREADS": options.threads} if options.threads else {}
    return {**manifest.properties, **threads, **options.extra}
