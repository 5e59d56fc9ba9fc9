"""Measures the quality of a demo checkpoint: the share of good answers on held-out attribute sets."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import tokenizers

from build_engines.demo.corpus import Attributes, format_prompt, unseen_attribute_sets

ATTRIBUTES_TO_NAME = 2
REPEAT_LENGTH = 8
MAX_NEW_TOKENS = 128
_ANSWERS_AT_ONCE = 50


@dataclass(frozen=True)
class Quality:
    """The number of answers that passed, of `asked`, and the failures by reason (an answer may have several)."""

    asked: int
    passed: int
    unnamed_product: int
    too_few_attributes: int
    repeating: int

    def __str__(self) -> str:
        return (
            f"{self.passed} of {self.asked} answers to unseen attribute sets name the product and "
            f"{ATTRIBUTES_TO_NAME} of its attributes and repeat nothing"
        )


def measure_quality(
    answer: Callable[[list[str]], list[str]],
    tokenizer: tokenizers.Tokenizer,
    *,
    count: int = 100,
    seed: int = 0,
) -> Quality:
    """Return the quality of the answers to `count` held-out attribute sets.

    `answer` takes all prompts and returns one greedy answer for each, without the prompt. `tokenizer` is the
    checkpoint's: an answer must not repeat any eight consecutive words or tokens.
    """
    sets = unseen_attribute_sets(count, seed=seed)
    answers = answer([format_prompt(attributes) for attributes in sets])
    product, few, repeating = [], [], []
    for attributes, text in zip(sets, answers, strict=True):
        product.append(not names(text, attributes.product))
        few.append(named_attributes(text, attributes) < ATTRIBUTES_TO_NAME)
        repeating.append(repeats(text.split()) or repeats(tokenizer.encode(text).ids))
    failed = [any(reasons) for reasons in zip(product, few, repeating, strict=True)]
    return Quality(count, count - sum(failed), sum(product), sum(few), sum(repeating))


def names(text: str, value: str) -> bool:
    """Return whether `text` contains `value` literally, as whole words."""
    return re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text) is not None


def named_attributes(text: str, attributes: Attributes) -> int:
    """Return the number of attributes, except the product, that `text` names."""
    return sum(names(text, value) for value in attributes.given().values())


def repeats(items: Sequence[Hashable]) -> bool:
    """Return whether any eight consecutive items occur twice in `items`."""
    grams = [tuple(items[i : i + REPEAT_LENGTH]) for i in range(len(items) - REPEAT_LENGTH + 1)]
    return len(set(grams)) < len(grams)


def greedy_answers(checkpoint: pathlib.Path, prompts: list[str], *, chat: bool = False) -> list[str]:
    """Return the greedy answers of `transformers` to `prompts`, sent raw or as a user's chat message.

    Answers are limited to `MAX_NEW_TOKENS` tokens.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    if chat:
        prompts = [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
            )
            for prompt in prompts
        ]
    answers: list[str] = []
    for start in range(0, len(prompts), _ANSWERS_AT_ONCE):
        inputs = tokenizer(prompts[start : start + _ANSWERS_AT_ONCE], padding=True, return_tensors="pt")
        inputs.pop("token_type_ids", None)
        outputs = model.generate(**inputs, max_new_tokens=MAX_NEW_TOKENS, do_sample=False)
        new = outputs[:, inputs["input_ids"].shape[1] :]
        answers += tokenizer.batch_decode(new, skip_special_tokens=True)
    return answers
