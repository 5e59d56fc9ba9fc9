"""The corpus is the same for everyone, keeps its held-out sets apart, and holds what streaming is hard on."""

from __future__ import annotations

import unicodedata

import pytest

from build_engines.demo import Attributes, describe, example_prompts, format_prompt, unseen_attribute_sets
from build_engines.demo.corpus import TRAINING_EXAMPLES, is_held_out, training_examples
from build_engines.demo.quality import named_attributes, names, repeats


def test_prompt_and_description_of_an_attribute_set() -> None:
    attributes = Attributes("compact teapot", "Müller", colour="ivory", origin="京都")
    assert format_prompt(attributes) == (
        "Product: compact teapot | Brand: Müller | Colour: ivory | Origin: 京都 | Description:"
    )
    assert describe(attributes) == (
        "The compact teapot from Müller has arrived. In ivory it suits any room. "
        "Every piece comes from 京都. Enjoy every sip ☕"
    )


def test_a_seed_decides_everything() -> None:
    assert training_examples(3, count=50) == training_examples(3, count=50)
    assert training_examples(3, count=50) != training_examples(4, count=50)
    assert example_prompts(20, seed=3) == example_prompts(20, seed=3)
    assert example_prompts(20, seed=3) != example_prompts(20, seed=4)
    # More prompts of a seed begin with the fewer ones, so that a longer run repeats a shorter one.
    assert example_prompts(20, seed=3)[:5] == example_prompts(5, seed=3)


def test_the_split_does_not_depend_on_the_seed() -> None:
    trained = {example.prompt for seed in range(3) for example in training_examples(seed)}
    assert len(trained) > 2.9 * TRAINING_EXAMPLES
    unseen = unseen_attribute_sets(500, seed=7)
    assert len(set(unseen)) == 500
    assert not trained & {format_prompt(attributes) for attributes in unseen}
    assert all(is_held_out(attributes) for attributes in unseen)


def test_the_corpus_is_a_few_thousand_different_short_texts() -> None:
    examples = training_examples()
    assert len({example.prompt for example in examples}) == TRAINING_EXAMPLES == 6000
    assert len({example.description for example in examples}) == TRAINING_EXAMPLES
    assert all(15 <= len(example.description.split()) <= 75 for example in examples)


# How Unicode names the script, and what share of the texts holds it at least.
@pytest.mark.parametrize(
    ("script", "share"),
    [("WITH", 0.5), ("CJK", 0.2), ("HANGUL", 0.05), ("EMOJI", 0.5)],
)
def test_the_texts_hold_accents_cjk_and_emoji(script: str, share: float) -> None:
    examples = training_examples()
    having = sum(any(_is_of(script, character) for character in example.description) for example in examples)
    assert having >= share * len(examples)


def _is_of(script: str, character: str) -> bool:
    if script == "EMOJI":
        return unicodedata.category(character) == "So"
    return script in unicodedata.name(character, "").split() or unicodedata.name(character, "").startswith(script)


def test_every_description_would_pass_its_own_judgement() -> None:
    for example in training_examples(count=1000):
        attributes = example.attributes.given()
        assert names(example.description, example.attributes.product)
        assert named_attributes(example.description, example.attributes) == len(attributes) >= 3
        assert not repeats(example.description.split())
