"""The embedded engine on OpenVINO alone: forward passes, KV blocks and sampling of its own, as a `ModelRunner`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property

from inflight.runtime.backends.paged.block_pool import BlockHashes, BlockPool
from inflight.runtime.backends.paged.guides import Guided, Guides
from inflight.runtime.backends.paged.paged_model import BLOCK_TOKENS, Chunk, PagedModel
from inflight.runtime.backends.paged.sampler import Sampler, SamplingState
from inflight.runtime.engine.interface import EngineOptions, StepOutput
from inflight.runtime.engine.manifest import EngineManifest
from inflight.runtime.engine.request_values import check_sampling
from inflight.runtime.messages import EngineLimits, FinishReason, GenerationRequest, RequestError, tenant_of
from inflight.runtime.text.tokenizer import load_tokenizer


class _Sequence:
    """A running request: its tokens, how many of them are computed, and its blocks."""

    def __init__(
        self,
        request: GenerationRequest,
        pool: BlockPool,
        reuses: bool,
        guided: Guided | None,
        end_ids: Collection[int],
    ) -> None:
        self.request = request
        self.tokens = list(request.prompt_ids)
        self.sampling = SamplingState(request, guided=guided)
        self.end_ids = end_ids
        self.block_hashes = BlockHashes(f"{request.adapter} {tenant_of(request.metadata)}")
        self.block_hashes.extend(self.tokens)
        # At least one token is computed, since its logits are needed.
        known = self.block_hashes.hashes[: (len(self.tokens) - 1) // BLOCK_TOKENS] if reuses else ()
        self.blocks = pool.known(known)
        self.computed = self.published = len(self.blocks) * BLOCK_TOKENS

    @property
    def waiting(self) -> int:
        """Tokens that are not computed yet."""
        return len(self.tokens) - self.computed


class PagedModelRunner:
    """Runs an engine directory of `inflight build --target openvino`; needs its engine.json.

    Raises ValueError for options that it doesn't support.
    """

    def __init__(self, options: EngineOptions) -> None:
        if options.draft_dir or options.prompt_lookup or options.adapters:
            raise ValueError("this engine neither speculates nor takes adapters yet; leave them out")
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
        threads = {"INFERENCE_NUM_THREADS": options.threads} if options.threads else {}
        self._model = PagedModel(options.model_dir, blocks, {**manifest.properties, **threads})
        self._pool = BlockPool(blocks)
        self._sampler = Sampler(manifest.vocabulary_size, options.threads)
        self._end_ids = manifest.end_ids
        self._running: dict[int, _Sequence] = {}

    @cached_property
    def _guides(self) -> Guides:
        if not self._end_ids:
            raise RequestError("this model has no end token, which a guide needs; leave it out", "unsupported_input")
        return Guides(load_tokenizer(self._options.model_dir), self.limits.vocabulary_size, self._end_ids)

    def check(self, request: GenerationRequest) -> None:
        check_sampling(request.sampling)
        if request.sampling.beam_width > 1:
            raise RequestError("this engine does not support beam_width; leave it out", "unsupported_input")
        if request.guide is not None:
            self._guides.start(request.guide)

    def ready(self, request: GenerationRequest) -> bool:
        return True

    def prepare(self, waiting: Sequence[GenerationRequest]) -> None:
        pass

    def joinable(self, request: GenerationRequest, ahead: Sequence[GenerationRequest]) -> bool:
        return True

    def add(self, handle: int, request: GenerationRequest) -> None:
        guided, end_ids = None, request.end_ids
        if request.guide is not None:
            # A complete answer ends by one of the model's own end tokens.
            guided, end_ids = self._guides.start(request.guide), (*end_ids, *self._end_ids)
        self._running[handle] = _Sequence(request, self._pool, self._options.kv_cache_reuse, guided, end_ids)

    def removable(self, handle: int) -> bool:
        return True

    def remove(self, handle: int) -> None:
        self._pool.release(self._running.pop(handle).blocks)

    def step(self) -> Iterator[StepOutput]:
        planned = self._plan()
        if not planned:
            return
        chunks = [self._chunk(sequence, count) for _, sequence, count in planned]
        logits = self._model.forward(chunks)
        for _, sequence, count in planned:
            sequence.computed += count
            self._publish(sequence)
        sampled = [(handle, sequence) for handle, sequence, _ in planned if not sequence.waiting]
        choices = self._sampler.sample(logits, [sequence.sampling for _, sequence in sampled]) if sampled else []
        for (handle, sequence), choice in zip(sampled, choices, strict=True):
            output = self._output(handle, sequence, choice.token, choice.log_prob)
            if output.finish_reason is not None:
                self.remove(handle)
            yield output

    def _plan(self) -> list[tuple[int, _Sequence, int]]:
        """Return how many tokens of each sequence to compute: all that decode, and prompts in the rest of the step."""
        planned = [(handle, each, 1) for handle, each in self._running.items() if each.waiting == 1]
        room = max(self._options.max_num_tokens - len(planned), 1)
        for handle, sequence in self._running.items():
            if sequence.waiting == 1:
                continue
            count = min(sequence.waiting, room) if self._options.chunked_context else sequence.waiting
            if count > room and planned:
                break
            planned.append((handle, sequence, count))
            room -= count
            if room <= 0:
                break
        return planned

    def _chunk(self, sequence: _Sequence, count: int) -> Chunk:
        end = sequence.computed + count
        while len(sequence.blocks) * BLOCK_TOKENS < end:
            sequence.blocks.append(self._pool.allocate())
        tokens = sequence.tokens[sequence.computed : end]
        return Chunk(tokens, sequence.computed, sequence.blocks, end == len(sequence.tokens))

    def _publish(self, sequence: _Sequence) -> None:
        """Let other sequences find the blocks that became full and computed."""
        if not self._options.kv_cache_reuse or sequence.computed - sequence.published < BLOCK_TOKENS:
            return
        sequence.block_hashes.extend(sequence.tokens)
        for place in range(sequence.published // BLOCK_TOKENS, sequence.computed // BLOCK_TOKENS):
            self._pool.publish(sequence.block_hashes.hashes[place], sequence.blocks[place])
        sequence.published = sequence.computed // BLOCK_TOKENS * BLOCK_TOKENS

    def _output(self, handle: int, sequence: _Sequence, token: int, log_prob: float | None) -> StepOutput:
        request, generated, guided = sequence.request, sequence.sampling.generated, sequence.sampling.guided
        if token in sequence.end_ids:
            return StepOutput(handle, (), FinishReason.STOP)
        if guided is not None:
            try:
                guided.take(token)
            except RequestError as error:
                return StepOutput(handle, (), FinishReason.ERROR, error=(str(error), error.code))
        generated.append(token)
        sequence.tokens.append(token)
        reason = FinishReason.LENGTH if len(generated) == request.max_tokens else None
        return StepOutput(handle, (token,), reason, () if log_prob is None else (log_prob,))
