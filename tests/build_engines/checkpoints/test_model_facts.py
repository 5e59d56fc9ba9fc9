from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from build_engines.checkpoints.model_facts import read_facts, read_special_ids
from build_engines.errors import BuildError
from tests.build_engines.tensorrt_llm.models import FALCON_7B, config_of
from tests.fixtures.engines import ARCHITECTURES, TinyCheckpoint
from tests.fixtures.errors import raises

SIZES = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "max_position_embeddings": 2048,
}


def facts(**fields: Any) -> Any:
    return read_facts(Path("/m"), SIZES | fields)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_facts_are_those_that_transformers_knows(tiny_checkpoint: TinyCheckpoint, architecture: str) -> None:
    from transformers import AutoConfig

    directory = tiny_checkpoint(architecture)
    ours = read_facts(directory, json.loads((directory / "config.json").read_text()))
    known = AutoConfig.from_pretrained(directory)
    heads = known.num_attention_heads
    assert (ours.architecture, ours.layers, ours.heads) == (
        known.architectures[0],
        known.num_hidden_layers,
        heads,
    )
    assert ours.kv_heads == getattr(known, "num_key_value_heads", heads)
    assert ours.head_dim == (getattr(known, "head_dim", None) or known.hidden_size // heads)
    assert (ours.hidden, ours.vocab_size) == (known.hidden_size, known.vocab_size)
    assert ours.inner == (
        getattr(known, "intermediate_size", None) or getattr(known, "n_inner", None) or 4 * ours.hidden
    )
    assert ours.positions == known.max_position_embeddings


def test_what_a_config_leaves_out() -> None:
    defaults = facts()
    assert (defaults.kv_heads, defaults.head_dim, defaults.inner, defaults.dtype) == (4, 16, 256, "float32")
    assert facts(multi_query=True).kv_heads == 1
    assert facts(multi_query=True, num_kv_heads=4).kv_heads == 1
    assert facts(multi_query=True, num_kv_heads=2, new_decoder_architecture=True).kv_heads == 2
    assert facts(torch_dtype="bfloat16").dtype == facts(dtype="bfloat16").dtype == "bfloat16"


def test_yarn_may_be_told_before_or_after_scaling() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
    assert facts(rope_scaling=scaling).positions == 8192
    assert facts(rope_scaling=scaling, max_position_embeddings=8192).positions == 8192
    assert facts(rope_scaling={"rope_type": "llama3", "factor": 8.0}).positions == 2048


@pytest.mark.parametrize("name", ["num_hidden_layers", "num_attention_heads", "vocab_size", "max_position_embeddings"])
def test_a_config_without_a_size_is_told(name: str) -> None:
    with raises(BuildError, "not_a_checkpoint", naming=name):
        read_facts(Path("/m"), {key: value for key, value in SIZES.items() if key != name})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": "4096"}, "hidden_size is '4096'"),
        ({"hidden_size": 4096.0}, "hidden_size is 4096.0"),
        ({"hidden_size": 10**300}, "hidden_size"),
        ({"hidden_size": 2}, ("2 numbers", "4 heads")),
        ({"intermediate_size": "11008"}, "intermediate_size is '11008'"),
        ({"intermediate_size": -4}, "intermediate_size is -4"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"num_hidden_layers": 10**18}, "num_hidden_layers"),
        ({"num_key_value_heads": 8}, ("4 attention heads", "8 KV heads")),
        ({"head_dim": "x"}, "head_dim is 'x'"),
        ({"head_dim": "x" * 9999}, f"head_dim is '{'x' * 39}…"),
        ({"multi_query": "false"}, "multi_query is 'false'"),
        ({"rope_scaling": [1]}, "rope_scaling is a list"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": "x"}}, "factor of rope_scaling"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": -4}}, "factor of rope_scaling"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": float("nan")}}, "factor of rope_scaling"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 10**400}}, "factor of rope_scaling"),
    ],
)
def test_a_value_that_no_model_has_is_told(fields: dict[str, Any], message: str) -> None:
    with raises(BuildError, "not_a_checkpoint", naming=message) as caught:
        facts(**fields)
    assert len(str(caught.value)) < 200


def test_what_falcon_and_bloom_say_on_the_hub() -> None:
    """Falcon 7B says no length, and BLOOM 7B1 neither length nor hidden_size; keys as published."""
    falcon = config_of("FalconForCausalLM") | FALCON_7B
    sizes = read_facts(Path("/m"), falcon)
    assert (sizes.layers, sizes.hidden, sizes.inner, sizes.heads) == (32, 4544, 18176, 71)
    assert (sizes.kv_heads, sizes.head_dim, sizes.positions, sizes.dtype) == (
        1,
        64,
        2048,
        "bfloat16",
    )
    bloom = read_facts(Path("/m"), config_of("BloomForCausalLM"))
    assert (bloom.layers, bloom.hidden, bloom.inner, bloom.heads, bloom.positions) == (30, 4096, 16384, 32, 2048)


def test_who_knows_best_which_ids_are_special(tmp_path: Path) -> None:
    tokenizer = SimpleNamespace(eos_token_id=1, pad_token_id=None, bos_token_id=2)
    ids = read_special_ids(tmp_path, {"pad_token_id": 0}, tokenizer)
    assert (ids.end_ids, ids.pad_id, ids.bos_id) == ([1], 0, 2)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 3]}')
    assert read_special_ids(tmp_path, {"eos_token_id": 5}, tokenizer).end_ids == [1, 3, 7]
    for damaged in ("{", "[]", "[" * 200_000):
        (tmp_path / "generation_config.json").write_text(damaged)
        with raises(BuildError, "checkpoint_damaged"):
            read_special_ids(tmp_path, {}, tokenizer)


@pytest.mark.parametrize(
    ("template", "ends"),
    [
        ("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>\n{% endfor %}", [2, 5]),
        ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", [2]),
        ("{{ raise_exception('no') }}", [2]),
        (None, [2]),
    ],
)
def test_an_answer_ends_where_the_template_ends_a_turn(template: str | None, ends: list[int], tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    rules = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    rules.add_special_tokens(["</s>", "<|user|>", "<|assistant|>", "<|end|>"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=rules, eos_token="</s>", chat_template=template)
    assert read_special_ids(tmp_path, {}, tokenizer).end_ids == ends
