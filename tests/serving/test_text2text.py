"""The model text2text, with a tiny T5 of random weights and a trained one: the texts that transformers writes."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from inflight_client import Client, InflightError

from benchmarks.encoders.trained_t5 import MOST_DIGITS, draw_example
from inflight.deploy.server.server import Server
from tests.fixtures.engines import TinyCheckpoint
from tests.fixtures.errors import raises

TEXTS = ("A server takes many requests at once.", "42", "Grüße aus Köln!", "東京は日本の首都です。" * 4)
TOKENS = 12


@pytest.mark.parametrize("beams", [1, 3])
def test_texts_in_one_batch_are_answered_as_transformers_answers_each(
    beams: int, speech_server: Server, tiny_checkpoint: TinyCheckpoint
) -> None:
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    model = AutoModelForSeq2SeqLM.from_pretrained(tiny_checkpoint("t5"))
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint("t5"))
    with Client(speech_server.grpc_address) as client:
        found = client.translate(TEXTS, max_tokens=TOKENS, beam_width=beams)
    for text, answer, read, reason in zip(TEXTS, found, found.input_tokens, found.finish_reasons, strict=True):
        inputs = tokenizer(text, return_tensors="pt")
        wanted = model.generate(
            input_ids=inputs["input_ids"], num_beams=beams, max_new_tokens=TOKENS, early_stopping=beams > 1
        )
        assert answer == tokenizer.decode(wanted[0], skip_special_tokens=True)
        assert read == inputs["input_ids"].shape[1]
        assert (reason == "stop") == (tokenizer.eos_token_id in wanted[0][1:])


def test_many_clients_get_their_own_answers_and_a_bad_text_fails_alone(speech_server: Server) -> None:
    with Client(speech_server.grpc_address) as client, ThreadPoolExecutor(8) as pool:
        texts = [f"Take {number} spoons of tea." for number in range(24)]
        alone = [client.translate(text, max_tokens=TOKENS)[0] for text in texts[:6]]
        together = list(pool.map(lambda text: client.translate(text, max_tokens=TOKENS)[0], texts))
        assert together[:6] == alone
        partly = client.translate(["tea", "tea " * 5000], max_tokens=TOKENS, return_errors=True)
        assert (bool(partly[0]), partly.errors[1].code) == (True, "prompt_too_long")
        assert client.translate("tea " * 5000, max_tokens=TOKENS, truncate=True).truncated == (True,)
        with raises(InflightError, "unsupported_input"):
            client.translate("tea", target_language="xx")


@pytest.mark.slow
def test_a_trained_model_answers_mixed_lengths_with_the_tokens_of_transformers(
    trained_t5_server: Server, trained_t5_checkpoint: Path
) -> None:
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    model = AutoModelForSeq2SeqLM.from_pretrained(trained_t5_checkpoint)
    tokenizer = AutoTokenizer.from_pretrained(trained_t5_checkpoint)
    source, limit = random.Random(1), MOST_DIGITS + 8
    calls = [(*example, beams) for example in (draw_example(source) for _ in range(200)) for beams in (1, 4)]
    with Client(trained_t5_server.grpc_address) as client, ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda call: client.translate(call[0], max_tokens=limit, beam_width=call[2])[0], calls))
    for (text, _, beams), answer in zip(calls, found, strict=True):
        inputs = tokenizer(text, return_tensors="pt")["input_ids"]
        wanted = model.generate(input_ids=inputs, num_beams=beams, max_new_tokens=limit, early_stopping=beams > 1)
        # A token for each word: so a text says which tokens it was made of.
        assert tokenizer(answer)["input_ids"] == wanted[0, 1:].tolist(), (text, beams)
    assert sum(answer == right for (_, right, _), answer in zip(calls, found, strict=True)) >= 0.95 * len(calls)
