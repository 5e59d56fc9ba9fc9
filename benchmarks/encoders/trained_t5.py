"""A small T5 that is trained here, in half a minute of one core, to copy digits and to spell them."""

from __future__ import annotations

import random
from pathlib import Path

MOST_DIGITS = 16
_DIGITS, _WORDS = tuple("0123456789"), ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_NAMES = {"copy:": _DIGITS, "spell:": _WORDS}
_TOKENS = ("<pad>", "</s>", "<unk>", *(f"▁{word}" for word in (*_NAMES, *_DIGITS, *_WORDS)))
_STEPS, _BATCH, _LEARNING_RATE = 1000, 48, 4e-3


def draw_example(source: random.Random, most: int = MOST_DIGITS) -> tuple[str, str]:
    """Return a text with 1 to `most` digits, and its answer: "spell: 3 1" and "three one".

    The answer has a token for each digit, and the end token.
    """
    digits = [source.randrange(10) for _ in range(source.randint(1, most))]
    task = source.choice(tuple(_NAMES))
    return " ".join((task, *map(str, digits))), " ".join(_NAMES[task][digit] for digit in digits)


def write_trained_t5(out: Path) -> None:
    """Write the checkpoint into `out`. The same versions of the libraries give the same weights."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

    words = Tokenizer(models.WordLevel({token: number for number, token in enumerate(_TOKENS)}, "<unk>"))
    words.pre_tokenizer, words.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    words.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 1)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")
    config = T5Config(
        vocab_size=len(_TOKENS), d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, dropout_rate=0.0,
        relative_attention_num_buckets=64, decoder_start_token_id=0,
    )  # fmt: skip
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = T5ForConditionalGeneration(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _LEARNING_RATE, _STEPS)
    source = random.Random(0)
    for step in range(_STEPS):
        most = min(MOST_DIGITS, 2 + 2 * MOST_DIGITS * step // _STEPS)  # from short to long ones
        texts, answers = zip(*(draw_example(source, most) for _ in range(_BATCH)), strict=True)
        inputs, labels = (tokenizer(list(each), padding=True, return_tensors="pt") for each in (texts, answers))
        targets = labels["input_ids"].masked_fill(labels["attention_mask"] == 0, -100)
        model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], labels=targets).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    torch.set_num_threads(threads)
    model.eval().save_pretrained(out)
    tokenizer.save_pretrained(out)


def write_wide_t5(out: Path) -> None:
    """Write the trained model into `out` with the sizes of T5-small, except for 32 heads of 16 in place of 8 of 64: it
    takes as long to compute, and answers as before, since its further weights are zeros and its further tokens equal
    one that is never right."""
    import torch
    from transformers import T5ForConditionalGeneration

    write_trained_t5(out)
    model = T5ForConditionalGeneration.from_pretrained(out)
    weights, config, narrow = model.state_dict(), model.config, model.config.d_model
    sizes = {"d_model": 512, "d_ff": 2048, "num_layers": 6, "num_decoder_layers": 6, "num_heads": 32}
    config.update({**sizes, "vocab_size": 32128})
    wide = T5ForConditionalGeneration(config).eval()
    for name, weight in wide.state_dict().items():
        weight.zero_()
        if name in weights:
            # A norm divides by the mean of all squares; the last one's output is divided by the root of the width too.
            norm = "layer_norm" in name and name != "decoder.final_layer_norm.weight"
            part = weights[name] * (narrow / config.d_model) ** 0.5 if norm else weights[name]
            weight[tuple(map(slice, part.shape))] = part
    with torch.no_grad():
        wide.shared.weight[len(_TOKENS) :] = wide.shared.weight[_TOKENS.index("<unk>")].clone()
    wide.save_pretrained(out)
