"""KV blocks: references are counted, beginnings are shared, and only what nobody refers to is lost."""

from __future__ import annotations

import random

from inflight.runtime.backends.openvino.block_pool import BlockHashes, BlockPool
from inflight.runtime.backends.openvino.paged_model import BLOCK_TOKENS

SIZE = BLOCK_TOKENS


def chain(tokens: list[int], scope: str = "") -> list[bytes]:
    found = BlockHashes(scope)
    found.extend(tokens)
    return found.hashes


def test_a_hash_stands_for_all_tokens_before_it_and_the_scope() -> None:
    tokens = list(range(3 * SIZE + 5))
    whole = chain(tokens)
    assert len(whole) == 3
    assert chain(tokens[: 2 * SIZE]) == whole[:2]
    assert not set(chain([9, *tokens[1:]])) & set(whole)
    assert not set(chain(tokens, "tenant")) & set(whole)
    grown = BlockHashes("")
    for end in range(len(tokens) + 1):
        grown.extend(tokens[:end])
    assert grown.hashes == whole


def test_the_longest_unused_block_is_reused_first_and_its_tokens_are_forgotten() -> None:
    pool = BlockPool(3)
    hashes = chain(list(range(3 * SIZE)))
    blocks = [pool.allocate() for _ in range(3)]
    for block_hash, block in zip(hashes, blocks, strict=True):
        pool.publish(block_hash, block)
    pool.release(blocks)
    assert pool.known(hashes) == blocks
    pool.release(blocks)
    assert pool.allocate() == blocks[2]  # beginnings stay longest
    assert pool.known(hashes) == blocks[:2]


def test_any_order_of_calls_keeps_the_count() -> None:
    """Sequences that begin alike come and go; each finds only blocks of its own tokens, which nobody else writes."""
    rng = random.Random(4)
    pool, held, content = BlockPool(40), list[tuple[list[int], list[int]]](), dict[int, tuple[int, ...]]()
    for _ in range(3000):
        if held and (rng.random() < 0.5 or sum(len(blocks) for _, blocks in held) > 30):
            pool.release(held.pop(rng.randrange(len(held)))[1])
            continue
        tokens = [rng.randrange(2) for _ in range(rng.randrange(1, 4))]
        tokens = [token for token in tokens for _ in range(SIZE)]
        hashes = chain(tokens)
        blocks = pool.known(hashes)
        for place, block in enumerate(blocks):
            assert content[block] == tuple(tokens[: (place + 1) * SIZE])
        for place in range(len(blocks), len(hashes)):
            block = pool.allocate()
            assert all(block not in others for _, others in held)
            content[block] = tuple(tokens[: (place + 1) * SIZE])
            pool.publish(hashes[place], block)
            blocks.append(block)
        held.append((tokens, blocks))
    for _, blocks in held:
        pool.release(blocks)
    assert pool.unused == 40
