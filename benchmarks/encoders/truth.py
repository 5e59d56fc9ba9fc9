"""Whether served embeddings are torch's: texts of 1 to 512 tokens in random order, from 32 clients at once.

Clients send calls of random sizes, 1 to 5 ms apart, with refused texts among the others. Compared are the vectors with
torch in fp32, computed text by text, and with the server's own for each text alone.

With --sts-b, the pairs of sentences of the STS benchmark are compared too: Spearman's correlation of the cosines of
their vectors with the scores that people gave, for the served vectors and for torch's.
"""

from __future__ import annotations

import csv
import gzip
import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import click
import numpy as np
from inflight_client import Client
from scipy.stats import spearmanr

from benchmarks.encoders.engine_loop import Vectors
from benchmarks.encoders.minilm import MAX_TOKENS, minilm_checkpoint, minilm_engine
from benchmarks.encoders.server import EncoderMetrics, embedding_server
from benchmarks.encoders.texts import Text, TextMaker
from benchmarks.figures import Figure, out_option, report

CLIENTS = 32
LARGEST_CALL = 40
_REFUSED = ("too long " * MAX_TOKENS, "far too long " * 20 * MAX_TOKENS)
"""Texts that the server refuses, each alone."""
_SPLIT, _SCORE, _SENTENCES = "split", "score", ("sentence1", "sentence2")
"""Columns of the STS benchmark's file."""


@dataclass(frozen=True)
class Pairs:
    """Pairs of sentences, the first ones before the second ones, and the score of each pair."""

    sentences: list[str]
    scores: list[float]

    @classmethod
    def read(cls, path: Path) -> Pairs:
        """Read the test split. Raises OSError, and click.UsageError for another format."""
        with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
            try:
                rows = [
                    row for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE) if row[_SPLIT] == "test"
                ]
                return cls([row[name] for name in _SENTENCES for row in rows], [float(row[_SCORE]) for row in rows])
            except (gzip.BadGzipFile, UnicodeDecodeError, KeyError, TypeError, ValueError) as error:
                raise click.UsageError(f"{path} is not the STS benchmark as tsv.gz ({error!r}); see --help.") from None

    def spearman(self, vectors: Vectors) -> float:
        """Return Spearman's correlation of the pairs' cosines and scores; `vectors` are those of the sentences."""
        first, second = np.split(vectors.astype(np.float64), 2)
        return float(spearmanr(_cosines(first, second), self.scores).statistic)


@dataclass
class Answers:
    """The vectors of all texts, and the refused texts that had no error or whose neighbours had one."""

    vectors: Vectors
    wrong: list[str] = field(default_factory=list)


@click.command(help=__doc__)
@click.option("--texts", default=1000, show_default=True)
@click.option(
    "--sts-b",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="stsbenchmark.tsv.gz: tab-separated without quotes, with a line of column names, of which split, score,"
    " sentence1 and sentence2 are read; rows of the split test are compared.",
)
@out_option("encoders_truth")
def main(texts: int, sts_b: Path | None, out: Path) -> None:
    pairs = Pairs.read(sts_b) if sts_b else None
    engine = minilm_engine()
    corpus = TextMaker(engine).uniform(texts, 1, MAX_TOKENS)
    expected = _torch(minilm_checkpoint(), [text.text for text in corpus], [text.tokens for text in corpus])
    with embedding_server(engine) as server, Client(server.grpc_address) as client:
        before = EncoderMetrics(server)
        together = _from_many_clients(server.grpc_address, corpus)
        texts_a_batch = EncoderMetrics(server).mean_since(before, "inflight_encoder_batch_texts")
        alone = np.concatenate([client.embed(text.text).vectors for text in corpus])
        served = client.embed(pairs.sentences).vectors if pairs else None
    figures = [
        Figure("largest 1 - cosine with torch fp32, in millionths", [_off(expected, together.vectors)], "<= 100"),
        Figure("largest 1 - cosine alone and in a batch, in millionths", [_off(alone, together.vectors)], "<= 10"),
        Figure("refused texts without an error of their own, or others with one", [len(together.wrong)], "<= 0"),
        Figure("texts a micro-batch", [texts_a_batch]),
    ]
    if pairs and served is not None:
        ours, theirs = pairs.spearman(served), pairs.spearman(_torch(minilm_checkpoint(), pairs.sentences))
        figures += [
            Figure("STS-B test, Spearman of the served vectors", [ours]),
            Figure("STS-B test, Spearman of torch fp32", [theirs]),
            Figure("STS-B test, difference of the two, in millionths", [abs(ours - theirs) * 1e6], "<= 1000"),
        ]
    report(out, figures, {"texts": texts, "wrong": together.wrong})


def _torch(checkpoint: Path, texts: Sequence[str], tokens: Sequence[int] = ()) -> Vectors:
    """Return the mean of the last hidden states, of length 1, as the checkpoint's modules say.

    Raises RuntimeError if a text has another number of tokens than `tokens` says.
    """
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = AutoModel.from_pretrained(checkpoint, dtype=torch.float32).eval()
    rows = []
    with torch.inference_mode():
        for text, wanted in zip_longest(texts, tokens):
            inputs = tokenizer(text, return_tensors="pt")
            if wanted not in (None, inputs["input_ids"].shape[1]):
                raise RuntimeError(f"a text has {inputs['input_ids'].shape[1]} tokens and not {wanted}")
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
    cosines = np.nan_to_num(_cosines(left.astype(np.float64), right.astype(np.float64)), nan=0.0)
    return float((1 - cosines.min()) * 1e6)


def _cosines(left: Any, right: Any) -> Any:
    """Return the cosine of each row of `left` with that of `right`."""
    return np.sum(left * right, axis=1) / (np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1))


if __name__ == "__main__":
    main()
