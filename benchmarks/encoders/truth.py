"""Whether served embeddings are torch's: texts of 1 to 512 tokens in random order, from 32 clients at once.

Clients send calls of random sizes, 1 to 5 ms apart, with refused texts among the others. Compared are the vectors with
torch in fp32, computed text by text, and with the server's own for each text alone.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import click
import numpy as np
from inflight_client import Client

from benchmarks.encoders.engine_loop import Vectors
from benchmarks.encoders.minilm import MAX_TOKENS, minilm_checkpoint, minilm_engine
from benchmarks.encoders.server import EncoderMetrics, embedding_server
from benchmarks.encoders.texts import Text, TextMaker
from benchmarks.figures import Figure, out_option, report

CLIENTS = 32
LARGEST_CALL = 40
_REFUSED = ("too long " * MAX_TOKENS, "far too long " * 20 * MAX_TOKENS)
"""Texts that the server refuses, each alone."""


@dataclass
class Answers:
    """The vectors of all texts, and the refused texts that had no error or whose neighbours had one."""

    vectors: Vectors
    wrong: list[str] = field(default_factory=list)


@click.command(help=__doc__)
@click.option("--texts", default=1000, show_default=True)
@out_option("encoders_truth")
def main(texts: int, out: Path) -> None:
    engine = minilm_engine()
    corpus = TextMaker(engine).uniform(texts, 1, MAX_TOKENS)
    expected = _torch(minilm_checkpoint(), corpus)
    with embedding_server(engine) as server, Client(server.grpc_address) as client:
        before = EncoderMetrics(server)
        together = _from_many_clients(server.grpc_address, corpus)
        texts_a_batch = EncoderMetrics(server).mean_since(before, "inflight_encoder_batch_texts")
        alone = np.concatenate([client.embed(text.text).vectors for text in corpus])
    figures = [
        Figure("largest 1 - cosine with torch fp32, in millionths", [_off(expected, together.vectors)], "<= 100"),
        Figure("largest 1 - cosine alone and in a batch, in millionths", [_off(alone, together.vectors)], "<= 10"),
        Figure("refused texts without an error of their own, or others with one", [len(together.wrong)], "<= 0"),
        Figure("texts a micro-batch", [texts_a_batch]),
    ]
    report(out, figures, {"texts": texts, "wrong": together.wrong})


def _torch(checkpoint: Path, corpus: Sequence[Text]) -> Vectors:
    """Return the mean of the last hidden states, of length 1, as the checkpoint's modules say."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = AutoModel.from_pretrained(checkpoint, dtype=torch.float32).eval()
    rows = []
    with torch.inference_mode():
        for text in corpus:
            inputs = tokenizer(text.text, return_tensors="pt")
            if inputs["input_ids"].shape[1] != text.tokens:
                raise RuntimeError(f"a text has {inputs['input_ids'].shape[1]} tokens and not {text.tokens}")
            states = model(**inputs).last_hidden_state[0]
            rows.append(torch.nn.functional.normalize(states.mean(0), dim=0).numpy())
    return np.stack(rows)


def _from_many_clients(address: str, corpus: Sequence[Text]) -> Answers:
    order = random.Random(1).sample(range(len(corpus)), len(corpus))
    lock = threading.Lock()
    found: Answers | None = None

    def one_client(number: int) -> None:
        nonlocal found
        source = random.Random(number)
        with Client(address) as client:
            while True:
                with lock:
                    size = source.randint(1, LARGEST_CALL)
                    own = [order.pop() for _ in range(min(size, len(order)))]
                if not own:
                    return
                time.sleep(source.uniform(0.001, 0.005))
                places: list[int | None] = list(own)
                texts = [corpus[place].text for place in own]
                if source.random() < 0.5:
                    at = source.randint(0, len(texts))
                    texts.insert(at, source.choice(_REFUSED))
                    places.insert(at, None)
                answer = client.embed(texts, return_errors=True)
                with lock:
                    if found is None:
                        found = Answers(np.full((len(corpus), answer.vectors.shape[1]), np.nan, np.float32))
                    for row, place in enumerate(places):
                        if (place is None) != (row in answer.errors):
                            found.wrong.append(f"{place}: {answer.errors.get(row)}")
                        if place is not None:
                            found.vectors[place] = answer.vectors[row]

    with ThreadPoolExecutor(CLIENTS) as clients:
        list(clients.map(one_client, range(CLIENTS)))
    assert found is not None
    return found


def _off(left: Vectors, right: Vectors) -> float:
    """Return by how many millionths the lowest cosine of two rows is below 1; a row with NaN has a cosine of 0."""
    one, other = left.astype(np.float64), right.astype(np.float64)
    scale = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    cosines = np.nan_to_num(np.sum(one * other, axis=1) / scale, nan=0.0)
    return float((1 - cosines.min()) * 1e6)


if __name__ == "__main__":
    main()
