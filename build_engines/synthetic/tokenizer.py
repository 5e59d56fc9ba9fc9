"""A small tokenizer for checkpoints with random weights."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from build_engines.checkpoints.ctranslate2_model import SEQ2SEQ_TASKS
from build_engines.synthetic.seq2seq_shapes import WHISPER_TOKENS
from build_engines.synthetic.shapes import CheckpointShape

# No token ends a turn, so that only the configured ones end the answers of random weights.
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_TEXTS = (
    "The quick brown fox jumps over the lazy dog. A server takes many requests at once and answers each of them.",
    "Continuous batching lets a short request finish while the long ones are still being decoded, token by token.",
    "Grüße aus Köln! L'été, les élèves mangent des crêpes. El niño pidió un café. Příliš žluťoučký kůň úpěl.",
    "Съешь ещё этих мягких французских булок. Η γρήγορη αλεπού. שלום עולם. مرحبا بالعالم. नमस्ते दुनिया।",
    "连续批处理让多个请求同时生成。今天天气很好，我们去公园散步。",
    "東京は日本の首都です。お茶をください。안녕하세요, 반갑습니다.",
    "Tea 🍵, cake 🍰 and a rocket 🚀! 👩‍👩‍👧‍👦 went to 🇯🇵 with 👍🏽 and 😀😀😀. ❤️‍🔥",
    "def step(self) -> list[int]:\n    return [queue.popleft() for queue in self.queues if queue]\n\n",
    "0 1 2 3 4 5 6 7 8 9 10 100 1,000 3.14159 50% $9.99 a+b=c {x: [1, 2]} http://127.0.0.1:8000/v2/models?x=1&y=2",
)


def write_tokenizer(shape: CheckpointShape, out: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja: byte-level BPE of `shape.vocab_size`.

    An encoder has no chat template.

    Any UTF-8 text can be encoded, and any id below the vocabulary's size decodes to a text (special ones to their
    names). Ids without a trained token are made-up words.
    """
    specials, size = _specials(shape), shape.vocab_size
    if shape.model_type == "whisper":  # the tokens of times are the model's alone
        specials = {token: shape.end_ids[0] + number for number, token in enumerate(WHISPER_TOKENS)}
        size = shape.end_ids[0] + len(WHISPER_TOKENS)
    vocabulary, merges = _vocabulary(size, specials)
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in specials])
    if shape.adds_start or shape.adds_end:
        tokenizer.post_processor = _template(shape, {number: text for text, number in specials.items()})
    tokenizer.save(str(out / "tokenizer.json"))
    (out / "tokenizer_config.json").write_text(json.dumps(_settings(shape, specials), indent=2) + "\n")
    if shape.encoder is None and shape.model_type not in SEQ2SEQ_TASKS:
        (out / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def _template(shape: CheckpointShape, texts: dict[int, str]) -> Any:
    """Return the rule that adds special tokens to a text, and to a pair as the family of the model has it."""
    end = texts[shape.end_ids[0]]
    start = texts[shape.start_id] if shape.adds_start and shape.start_id is not None else ""
    pair = f"{start} $A $B"
    if shape.adds_end and not start:
        pair = f"$A $B {end}"
    elif shape.adds_end:
        between = f"{end} {end} $B" if "roberta" in shape.model_type else f"{end} $B:1"
        pair = f"{start} $A {between} {end}:{0 if 'roberta' in shape.model_type else 1}"
    used = [start] * bool(start) + [end] * shape.adds_end
    return processors.TemplateProcessing(
        single=f"{start} $A {end if shape.adds_end else ''}".strip(),
        pair=pair,
        special_tokens=[(text, number) for number, text in texts.items() if text in used],
    )


def _specials(shape: CheckpointShape) -> dict[str, int]:
    """Return the ids of special tokens by text. Each id has one text; an id that is both end and start is an end."""
    names = ["<|endoftext|>", *(f"<|end_{number}|>" for number in range(1, len(shape.end_ids)))]
    texts = dict(zip(shape.end_ids, names, strict=True))
    if shape.start_id is not None:
        texts.setdefault(shape.start_id, "<|startoftext|>")
    if shape.pad_id is not None:
        texts.setdefault(shape.pad_id, "<pad>" if shape.model_type == "marian" else "<|pad|>")
    free = (number for number in itertools.count() if number not in texts)
    for text in ("<|im_start|>", "<|im_end|>"):
        texts[next(free)] = text
    return {text: number for number, text in sorted(texts.items())}


def _vocabulary(size: int, specials: dict[str, int]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    trained, merges = _train(min(size, 1536) - len(specials))
    taken = set(specials.values())
    free = (number for number in range(size) if number not in taken)
    vocabulary = dict(zip(trained, free, strict=False)) | specials
    words = (word for word in _words() if word not in vocabulary)
    vocabulary |= {word: number for number, word in zip(free, words, strict=False)}
    return vocabulary, merges


def _train(size: int) -> tuple[list[str], list[tuple[str, str]]]:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=1,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(_TEXTS, trainer)
    model: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].__getitem__), [(a, b) for a, b in model["merges"]]


def _words() -> Iterator[str]:
    """Yield made-up words of increasing length, each with the leading space of byte-level BPE."""
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
    for length in itertools.count(2):
        for parts in itertools.product(syllables, repeat=length):
            yield "Ġ" + "".join(parts)


def _settings(shape: CheckpointShape, specials: dict[str, int]) -> dict[str, Any]:
    texts = {number: text for text, number in specials.items()}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None if shape.start_id is None else texts[shape.start_id],
        "eos_token": texts[shape.end_ids[0]],
        "pad_token": None if shape.pad_id is None else texts[shape.pad_id],
        "clean_up_tokenization_spaces": False,
        **({"padding_side": "left"} if shape.encoder and not shape.adds_start else {}),
        "model_max_length": shape.encoder.max_seq_length
        if shape.encoder
        else shape.fields.get("max_position_embeddings", shape.fields.get("n_positions")),
    }
