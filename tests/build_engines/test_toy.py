"""A freshly made toy checkpoint answers well; and the judgement of answers is strict."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest
import tokenizers
import torch
from transformers import AutoModelForCausalLM

from tests.fixtures.toy import describe, example_prompts, unseen_attribute_sets
from tests.fixtures.toy.corpus import Attributes, training_examples
from tests.fixtures.toy.quality import (
    MAX_NEW_TOKENS,
    Quality,
    greedy_answers,
    measure_quality,
    named_attributes,
    names,
    repeats,
)
from tests.fixtures.toy.tokenizer import END_ID, load_tokenizer, train_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> tokenizers.Tokenizer:
    return train_tokenizer(example.description for example in training_examples(count=500))


@pytest.fixture(scope="module")
def checkpoint(toy_checkpoint: Callable[[], pathlib.Path]) -> pathlib.Path:
    return toy_checkpoint()


@pytest.mark.slow
@pytest.mark.parametrize("chat", [False, True], ids=["raw", "chat"])
def test_answers_to_unseen_attribute_sets_are_good(checkpoint: pathlib.Path, chat: bool) -> None:
    # 80 is what is promised; several seeds gave 98 and more.
    tokenizer = load_tokenizer(checkpoint)
    quality = measure_quality(lambda prompts: greedy_answers(checkpoint, prompts, chat=chat), tokenizer)
    assert quality.asked == 100
    assert quality.passed >= 80, quality


@pytest.mark.slow
def test_answers_end_by_themselves(checkpoint: pathlib.Path) -> None:
    tokenizer = load_tokenizer(checkpoint)
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    for prompt in example_prompts(5, seed=11):
        ids = torch.tensor([tokenizer.encode(prompt).ids])
        answer = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=MAX_NEW_TOKENS, do_sample=False
        )[0, ids.shape[1] :].tolist()
        assert answer[-1] == END_ID
        assert 20 <= len(answer) < MAX_NEW_TOKENS
        assert answer.count(END_ID) == 1


def test_prompts_of_two_thousand_tokens_are_accepted(young_toy_checkpoint: Callable[[], pathlib.Path]) -> None:
    model = AutoModelForCausalLM.from_pretrained(young_toy_checkpoint())
    assert model.config.max_position_embeddings >= 4096
    ids = torch.randint(5, model.config.vocab_size, (1, 2000), generator=torch.Generator().manual_seed(0))
    answer = model.generate(
        ids, attention_mask=torch.ones_like(ids), min_new_tokens=8, max_new_tokens=8, do_sample=False
    )
    assert answer.shape == (1, 2008)


def test_the_corpus_itself_passes(tokenizer: tokenizers.Tokenizer) -> None:
    answers = [describe(attributes) for attributes in unseen_attribute_sets(100)]
    assert measure_quality(lambda prompts: answers, tokenizer) == Quality(100, 100, 0, 0, 0)


def test_each_way_to_fail_is_counted(tokenizer: tokenizers.Tokenizer) -> None:
    sets = unseen_attribute_sets(4)
    good = [describe(attributes) for attributes in sets]
    answers = [
        good[0],
        good[1].replace(sets[1].product, "thing"),
        f"The {sets[2].product} of {sets[2].brand}.",
        f"{good[3]} {good[3]}",
    ]
    assert measure_quality(lambda prompts: answers, tokenizer, count=4) == Quality(4, 1, 1, 1, 1)


def test_names_wants_whole_words_as_they_are_written() -> None:
    assert names("In copper, then.", "copper")
    assert not names("A coppery tone.", "copper")
    assert not names("In Copper.", "copper")
    assert names("Made in 京都.", "京都")
    attributes = Attributes("mini kite", "Oak & Iron", colour="amber", material="cork")
    assert named_attributes("Oak & Iron chose amber.", attributes) == 2


def test_repeats_looks_at_eight_in_a_row() -> None:
    assert not repeats([1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7])
    assert repeats([1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 2, 3, 4, 5, 6, 7, 8])
    assert not repeats([])
