"""Trains the demo checkpoint: a two-layer Llama learns a copy task in a minute on two cores."""

from __future__ import annotations

import pathlib
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import tokenizers
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from build_engines.demo.corpus import Example, training_examples
from build_engines.demo.tokenizer import ASSISTANT, END, END_ID, PAD_ID, USER, save_tokenizer, train_tokenizer

STEPS = 400
BATCH = 32
PEAK_LEARNING_RATE = 3e-3
MAX_POSITIONS = 4096
# Batches per group of examples sorted by length; sorting reduces padding.
BATCHES_PER_STRETCH = 8
REPORT_EVERY = 25
IGNORED = -100  # the label that torch's cross entropy ignores


@dataclass(frozen=True)
class Sequence:
    """An example as token ids: the prompt, and the answer with its end token; only the answer is learned."""

    prompt: list[int]
    answer: list[int]

    def __len__(self) -> int:
        return len(self.prompt) + len(self.answer)


def train_checkpoint(out: pathlib.Path, *, seed: int, report: Callable[[str], None], steps: int = STEPS) -> None:
    """Create corpus and tokenizer, train a model for `steps` steps, and write a complete checkpoint into `out`.

    Models of different seeds have the same tokenizer.
    """
    examples = training_examples()
    report(f"corpus: {len(examples)} product descriptions")
    tokenizer = train_tokenizer(f"{example.prompt} {example.description}" for example in examples)
    sequences = encode_examples(examples, tokenizer, random.Random("forms 0"))
    # Keep the caller's random state.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(model_config(tokenizer.get_vocab_size()))
        report(f"model: {model.num_parameters() / 1e6:.1f} million parameters, {steps} training steps")
        train(model, draw_batches(sequences, random.Random(f"batches {seed}")), steps=steps, report=report)
    model.save_pretrained(out)
    save_tokenizer(tokenizer, out, max_length=MAX_POSITIONS)


def model_config(vocabulary_size: int) -> LlamaConfig:
    """Return a config small enough to train quickly, with the features of a large model (RoPE, grouped queries).

    Initial weights are larger than usual: from small ones, a narrow model needs many of its few steps to grow them.
    """
    return LlamaConfig(
        vocab_size=vocabulary_size,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=MAX_POSITIONS,
        initializer_range=0.04,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=END_ID,
        pad_token_id=PAD_ID,
    )


def encode_examples(examples: list[Example], tokenizer: tokenizers.Tokenizer, source: random.Random) -> list[Sequence]:
    """Return the examples as token ids, half as raw prompts and half in the chat template."""
    sequences = []
    for example in examples:
        if source.random() < 0.5:
            prompt, answer = example.prompt, f" {example.description}"
        else:
            prompt, answer = f"{USER}{example.prompt}{END}{ASSISTANT}", example.description
        sequences.append(Sequence(tokenizer.encode(prompt).ids, [*tokenizer.encode(answer).ids, END_ID]))
    return sequences


def draw_batches(sequences: list[Sequence], source: random.Random) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches indefinitely: token ids and labels, both int64 [BATCH, longest], padded on the right.

    Causal attention ignores padding on the right, so no attention mask is needed.
    """
    stretch = BATCH * BATCHES_PER_STRETCH
    while True:
        order = source.sample(sequences, len(sequences))
        for start in range(0, len(order) - stretch + 1, stretch):
            by_length = sorted(order[start : start + stretch], key=len)
            batches = [by_length[i : i + BATCH] for i in range(0, stretch, BATCH)]
            source.shuffle(batches)
            for batch in batches:
                yield _pad(batch)


def _pad(batch: list[Sequence]) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(len(sequence) for sequence in batch)
    ids = torch.full((len(batch), longest), PAD_ID)
    labels = torch.full((len(batch), longest), IGNORED)
    for row, sequence in enumerate(batch):
        ids[row, : len(sequence)] = torch.tensor(sequence.prompt + sequence.answer)
        labels[row, len(sequence.prompt) : len(sequence)] = torch.tensor(sequence.answer)
    return ids, labels


def train(
    model: LlamaForCausalLM,
    batches: Iterator[tuple[torch.Tensor, torch.Tensor]],
    *,
    steps: int,
    report: Callable[[str], None],
) -> None:
    """Train `model` in place for `steps` steps in float32, only on the answers."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_LEARNING_RATE, total_steps=steps, pct_start=0.15)
    model.train()
    started = time.monotonic()
    for step in range(1, steps + 1):
        loss = answer_loss(model, *next(batches))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % REPORT_EVERY == 0 or step == steps:
            left = (time.monotonic() - started) / step * (steps - step)
            report(f"step {step} of {steps}, loss {loss.item():.3f}, {left:.0f} s left")
    model.eval()


def answer_loss(model: LlamaForCausalLM, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy of the answers' tokens; logits are computed only for these."""
    hidden = model.model(input_ids=ids).last_hidden_state[:, :-1]
    following = labels[:, 1:]
    learned = following != IGNORED
    return torch.nn.functional.cross_entropy(model.lm_head(hidden[learned]), following[learned])
