"""Makes the tokenizer of a GGUF file: the files of a checkpoint from the file's vocabulary.

Token ids and texts are those of llama.cpp.
"""

from __future__ import annotations

import json
import re
from enum import IntEnum
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from build_engines.errors import BuildError, unsupported
from build_engines.gguf.header import GgufFile

_KEY = "tokenizer.ggml"
_TEMPLATE = "tokenizer.chat_template"
_TEMPLATE_NAME = re.compile(r"\w{1,64}")
_SPACE = "▁"  # how sentencepiece writes a space
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_AFTER = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_PUNCTUATION = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _cased(contractions: str, digits: str) -> str:
    """Return the rule that parts words before capital letters."""
    words = [
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{contractions}",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{contractions}",
    ]
    return "|".join([*words, digits, r" ?[^\s\p{L}\p{N}]+[\r\n/]*", _AFTER])


def _cl100k(digits: str) -> str:
    return "|".join([_CONTRACTIONS, _WORD, digits, _PUNCTUATION, _AFTER])


_RULES: dict[str, tuple[str, ...]] = {
    "gpt2": (_GPT2,),
    "digits": (r"\p{N}", _GPT2),
    "llama3": (_cl100k(r"\p{N}{1,3}"),),
    "qwen2": (_cl100k(r"\p{N}"),),
    "gpt-4o": (_cased(f"{_CONTRACTIONS}?", r"\p{N}{1,3}"),),
    "tekken": (_cased("", r"\p{N}"),),
    "deepseek-v3": (
        r"\p{N}{1,3}",
        "[一-龥぀-ゟ゠-ヿ]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_AFTER}",
    ),
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}"),
    "falcon": (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]"),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
}
"""How texts are parted into words before byte-level BPE: rules that apply one after another."""
_NAMES = {
    "gpt2": ("gpt-2", "phi-2", "olmo", "mpt", "jais", "exaone4", "trillion", "gigachat", "a.x-4.0", "mellum"),
    "digits": ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
    "llama3": (
        *("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
        *("dbrx", "smaug-bpe", "chatglm-bpe", "glm4"),
    ),
    "qwen2": ("qwen2", "deepseek-r1-qwen", "kormo", "megrez", "stablelm2", "hunyuan"),
    "gpt-4o": ("gpt-4o", "llama4", "kanana2"),
    "tekken": ("tekken",),
    "deepseek-v3": ("deepseek-v3", "hunyuan-dense"),
    "deepseek-coder": ("deepseek-coder",),
    "falcon": ("falcon",),
    "default": ("default",),
}
_RULE_OF = {name: rule for rule, names in _NAMES.items() for name in names}
# A word that is a token is one, whatever the merges say.
_WHOLE_WORDS = {*_NAMES["llama3"][:8], "glm4", "tekken"}
_ADDS_BOS = {*_NAMES["llama3"][:8], "tekken"}
# Special, as in llama.cpp, also where a file says that they are ordinary.
_ENDS = {
    *("</s>", "<eos>", "[EOS]", "<EOT>", "_<EOT>", "[EOT]", "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>"),
    *("<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>", "<end_of_utterance>", "<|endoftext|>"),
    *("<|end_of_text|>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~["),
}


class _Kind(IntEnum):
    """What GGUF says of a token; others are ordinary ones."""

    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4


def write_tokenizer(file: GgufFile, out: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json, with the chat templates, into `out`.

    Raises BuildError: `unsupported_architecture` for a kind of tokenizer that can't be made, `checkpoint_damaged`.
    """
    tokens = file.strings(f"{_KEY}.tokens")
    kinds = file.numbers(f"{_KEY}.token_type", len(tokens)) if f"{_KEY}.token_type" in file.metadata else []
    model = file.text(f"{_KEY}.model")
    if model not in ("gpt2", "llama"):
        raise _unsupported(file, f"a tokenizer of the kind {model[:100]}", "gpt2 and llama")
    tokenizer = (_byte_level if model == "gpt2" else _sentencepiece)(file, tokens)
    tokenizer.add_tokens(
        [
            AddedToken(token, special=kind != _Kind.USER_DEFINED or token in _ENDS, normalized=False)
            for token, kind in zip(tokens, kinds, strict=False)
            if token and (kind in set(_Kind) or token in _ENDS)
        ]
    )
    special = _special_tokens(file, tokens, model)
    tokenizer.post_processor = _ends(tokenizer, special, *_added_ends(file, model))
    tokenizer.save(str(out / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "chat_template": _templates(file),
        **special,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def _templates(file: GgufFile) -> list[dict[str, str]]:
    """Return the chat templates with their names."""
    keys = {key: key.removeprefix(f"{_TEMPLATE}.") for key in file.metadata if key.startswith(_TEMPLATE)}
    keys = {key: "default" if key == _TEMPLATE else name for key, name in keys.items()}
    return [{"name": name, "template": file.text(key)} for key, name in keys.items() if _TEMPLATE_NAME.fullmatch(name)]


def end_ids(file: GgufFile) -> list[int]:
    """Return the ids that end an answer: of a text, of a turn, of a message."""
    ids = {file.metadata.get(f"{_KEY}.{name}_token_id") for name in ("eos", "eot", "eom")}
    return sorted(each for each in ids if isinstance(each, int))


def _byte_level(file: GgufFile, tokens: list[str]) -> Tokenizer:
    named = file.metadata.get(f"{_KEY}.pre", "default")
    if named not in _RULE_OF:
        raise _unsupported(file, f"the pre-tokenizer {str(named)[:100]}", ", ".join(sorted(_RULE_OF)))
    merges = [_merge(text) for text in file.strings(f"{_KEY}.merges")]
    tokenizer = _bpe(file, tokens, merges, ignore_merges=named in _WHOLE_WORDS)
    rules = [pre_tokenizers.Split(Regex(rule), "isolated") for rule in _RULES[_RULE_OF[named]]]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*rules, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(file: GgufFile, tokens: list[str]) -> Tokenizer:
    scores = file.numbers(f"{_KEY}.scores", len(tokens))
    kinds = file.numbers(f"{_KEY}.token_type", len(tokens))
    prefix = file.metadata.get(f"{_KEY}.add_space_prefix", True)
    unknown = file.whole(f"{_KEY}.unknown_token_id", 0)
    merges = _merges_by_score(tokens, scores, kinds)
    name = tokens[unknown] if unknown < len(tokens) else None
    tokenizer = _bpe(file, tokens, merges, unk_token=name, fuse_unk=True, byte_fallback=True)
    replace = normalizers.Replace(" ", _SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), replace]) if prefix else replace
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] if prefix else [])])
    return tokenizer


def _bpe(file: GgufFile, tokens: list[str], merges: list[tuple[str, str]], **options: Any) -> Tokenizer:
    vocabulary = {token: number for number, token in reversed(list(enumerate(tokens)))}
    try:
        return Tokenizer(models.BPE(vocab=vocabulary, merges=merges, **options))
    except Exception as error:  # of no narrower type
        raise file.damaged(f"its merges don't fit its vocabulary ({str(error)[:100]})") from error


def _merge(text: str) -> tuple[str, str]:
    first, _, second = text[1:].partition(" ")
    return text[:1] + first, second


def _merges_by_score(tokens: list[str], scores: list[float], kinds: list[int]) -> list[tuple[str, str]]:
    """Return the merges with which BPE joins what sentencepiece joins: those to tokens of high scores first."""
    known = {token: number for number, token in reversed(list(enumerate(tokens)))}
    ranked = []
    for number, token in enumerate(tokens):
        for place in range(1, len(token)):
            left, right = known.get(token[:place]), known.get(token[place:])
            if left is not None and right is not None:
                ranked.append((-scores[number], left, right))
    return [(tokens[left], tokens[right]) for _, left, right in sorted(ranked)]


def _special_tokens(file: GgufFile, tokens: list[str], model: str) -> dict[str, str]:
    usual = {"bos": 1, "eos": 2, "unknown": 0} if model == "llama" else {}
    names = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
    ids = {name: file.metadata.get(f"{_KEY}.{key}_token_id", usual.get(key)) for name, key in names.items()}
    return {
        name: tokens[number] for name, number in ids.items() if isinstance(number, int) and 0 <= number < len(tokens)
    }


def _added_ends(file: GgufFile, model: str) -> tuple[bool, bool]:
    """Return whether a text gets the token of its beginning, and that of its end."""
    usual = model == "llama" or file.metadata.get(f"{_KEY}.pre") in _ADDS_BOS
    begins, ends = (file.metadata.get(f"{_KEY}.add_{name}_token") for name in ("bos", "eos"))
    return (usual if begins is None else bool(begins)), bool(ends)


def _ends(tokenizer: Tokenizer, special: dict[str, str], begins: bool, ends: bool) -> Any:
    first = [special["bos_token"]] if begins and "bos_token" in special else []
    last = [special["eos_token"]] if ends and "eos_token" in special else []
    if not first and not last:
        return None
    one, two = [*first, "$A", *last], [*(f"{token}:1" for token in first), "$B:1", *(f"{token}:1" for token in last)]
    ids = [(token, tokenizer.token_to_id(token)) for token in (*first, *last)]
    return processors.TemplateProcessing(single=one, pair=[*one, *two], special_tokens=ids)


def _unsupported(file: GgufFile, what: str, known: str) -> BuildError:
    return unsupported(
        f"{file.path} has {what}, which is not known; known are {known}; build from the original Hugging Face model."
    )
