"""Inputs at the edges, on a real server: lengths at the limit, huge texts and calls, malformed requests, and the memory
of the server's processes over many shapes from four threads.

None may take the server down or hang: the slowest answer to a refused or malformed request counts. Lengths of the
shapes are log-uniform, so that most are short and all occur.
"""

from __future__ import annotations

import http
import http.client
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from inflight_client import Client, InflightError

from benchmarks.encoders.minilm import MAX_TOKENS, minilm_engine
from benchmarks.encoders.server import MODEL, embedding_server
from benchmarks.encoders.texts import SHORTEST, Text, TextMaker
from benchmarks.figures import Figure, out_option, report
from benchmarks.leak_detector import growth
from benchmarks.process_memory import MIB, ProcessTreeMemory
from inflight.deploy.server.server import Server

THREADS = 4
_HUGE = 100_000
_WARM_UP = 0.3
"""Fraction of the shapes after which memory is compared."""


@dataclass(frozen=True)
class Edge:
    """One input at an edge: whether it ended as it should, and its seconds."""

    name: str
    right: bool
    seconds: float


@click.command(help=__doc__)
@click.option("--shapes", default=20_000, show_default=True)
@click.option("--malformed", default=10_000, show_default=True)
@click.option("--texts", default=10_000, show_default=True, help="Texts of the large call.")
@out_option("encoders_edges")
def main(shapes: int, malformed: int, texts: int, out: Path) -> None:
    engine = minilm_engine()
    maker = TextMaker(engine)
    with embedding_server(engine) as server, Client(server.grpc_address) as client:
        edges = _edges(client, maker)
        large = _large_call(client, maker, texts)
        slowest, answers = _malformed(server, malformed)
        grown = _shapes(server, maker, shapes)
        alive = len(client.embed("still here")) == 1 and not server.restarts
    for edge in edges:
        print(f"{edge.name}: {'right' if edge.right else 'WRONG'} in {edge.seconds * 1e3:.0f} ms")
    figures = [
        Figure("inputs at an edge with a wrong end", [sum(not edge.right for edge in (*edges, large))], "<= 0"),
        Figure("slowest input at an edge", [max(edge.seconds for edge in edges)], "<= 1", "s"),
        Figure(f"a call of {texts:,} texts", [large.seconds], unit="s"),
        Figure(f"slowest of {malformed:,} malformed requests", [slowest], "<= 1", "s"),
        Figure("malformed requests that were answered as good", [answers.get("200", 0)], "<= 0"),
        Figure(f"growth of memory over {shapes:,} shapes", [grown.fraction * 100], "<= 3", "%"),
        Figure("memory at the end", [grown.end / MIB], unit="MiB"),
        Figure("server restarts, or no answer at the end", [0 if alive else 1], "<= 0"),
    ]
    report(out, figures, {"edges": [vars(edge) for edge in edges], "answers": answers, "growth": vars(grown)})


def _edges(client: Client, maker: TextMaker) -> list[Edge]:
    longest, over, huge = maker.of_lengths([MAX_TOKENS, MAX_TOKENS + 1, _HUGE])

    def embed(text: Text | str, **options: Any) -> Callable[[], tuple[int, bool]]:
        def run() -> tuple[int, bool]:
            found = client.embed(text if isinstance(text, str) else text.text, **options)
            return found.input_tokens[0], found.truncated[0]

        return run

    cut = (MAX_TOKENS, True)
    return [
        _edge("exactly the maximum", embed(longest), (MAX_TOKENS, False)),
        _edge("one over, refused", embed(over), "prompt_too_long"),
        _edge("one over, truncated", embed(over, truncate=True), cut),
        _edge("empty, which has special tokens only", embed(""), (2, False)),
        _edge(f"{_HUGE:,} tokens, refused", embed(huge), "prompt_too_long"),
        _edge(f"{_HUGE:,} tokens, truncated", embed(huge, truncate=True), cut),
    ]


def _edge(name: str, run: Callable[[], Any], expected: Any) -> Edge:
    began = time.monotonic()
    try:
        found = run()
    except InflightError as error:
        found = error.code
    if found != expected:
        print(f"{name}: {found!r} and not {expected!r}")
    return Edge(name, found == expected, time.monotonic() - began)


def _large_call(client: Client, maker: TextMaker, count: int) -> Edge:
    """Embed many short texts at once; a few are compared with the same text alone."""
    texts = [text.text for text in maker.uniform(count, SHORTEST, 12)]
    began = time.monotonic()
    vectors = client.embed(texts).vectors
    seconds = time.monotonic() - began
    places = random.Random(0).sample(range(count), min(count, 50))
    cosines = [float(np.dot(client.embed(texts[place]).vectors[0], vectors[place])) for place in places]
    return Edge("large call", len(vectors) == count and min(cosines) > 0.9999, seconds)


def _malformed(server: Server, count: int) -> tuple[float, dict[str, int]]:
    """Return the seconds of the slowest answer, and how many answers had each HTTP status."""
    connection = http.client.HTTPConnection(server.http_address, timeout=30)
    source, statuses, slowest = random.Random(2), Counter[str](), 0.0
    for _ in range(count):
        body = json.dumps(_malformed_body(source)).encode()
        began = time.monotonic()
        connection.request("POST", f"/v2/models/{MODEL}/infer", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = response.read()
        if response.status == http.HTTPStatus.OK:
            print(f"answered as good: {body[:300]!r}: {answer[:200]!r}")
        slowest = max(slowest, time.monotonic() - began)
        statuses[str(int(response.status))] += 1
    return slowest, dict(statuses)


def _malformed_body(source: random.Random) -> dict[str, Any]:
    """Return a request that is wrong in one way."""

    def tensor(name: str, datatype: str, data: list[Any], *shape: int) -> dict[str, Any]:
        return {"name": name, "datatype": datatype, "shape": list(shape), "data": data}

    text = tensor("text_input", "BYTES", ["a text"], 1, 1)
    number = source.randint(-(2**31), -1)
    kinds: list[list[dict[str, Any]]] = [
        [],
        [tensor("text_input", "INT32", [1], 1, 1)],
        [tensor("text_input", "BYTES", ["a", "b"], 1, 2)],
        [tensor("text_input", "BYTES", ["a"] * 257, 257, 1)],
        [tensor("text_input", "BYTES", ["word " * source.randint(600, 2000)], 1, 1)],
        [text, tensor("dimensions", "INT32", [number], 1, 1)],
        [text, tensor("dimensions", "INT32", [source.randint(385, 2**31 - 1)], 1, 1)],
        [text, tensor("input_type", "BYTES", [f"unknown {number}"], 1, 1)],
        [text, tensor("priority", "BYTES", ["high"], 1, 1)],
        [text, tensor("unknown", "INT32", [1], 1, 1)],
        [text, tensor("input_ids", "INT32", [1, 2], 1, 2), tensor("input_lengths", "INT32", [2], 1, 1)],
        [tensor("input_ids", "INT32", [number, 5], 1, 2), tensor("input_lengths", "INT32", [2], 1, 1)],
        [tensor("input_ids", "INT32", [5, 2**31 - 1], 1, 2), tensor("input_lengths", "INT32", [2], 1, 1)],
        [
            tensor("input_ids", "INT32", [5, 6], 1, 2),
            tensor("input_lengths", "INT32", [source.choice((0, -1, 3))], 1, 1),
        ],
        [tensor("input_ids", "INT32", [7] * 600, 1, 600), tensor("input_lengths", "INT32", [600], 1, 1)],
        [tensor("input_ids", "INT32", [5, 6, 7], 1, 2), tensor("input_lengths", "INT32", [2], 1, 1)],
    ]
    # Without the output `error`, a text that is refused fails its request.
    return {"inputs": source.choice(kinds), "outputs": [{"name": "embedding"}]}


def _shapes(server: Server, maker: TextMaker, count: int) -> Any:
    """Embed texts of random lengths from four threads, and return the growth of the server's memory."""
    source = random.Random(3)
    lengths = [round(SHORTEST * (MAX_TOKENS / SHORTEST) ** source.random()) for _ in range(count)]
    texts = [text.text for text in maker.of_lengths(lengths)]

    def one_thread(number: int) -> None:
        own = random.Random(number)
        with Client(server.grpc_address) as client:
            place = number
            while place < count:
                size = own.randint(1, 3)
                client.embed(texts[place : place + size * THREADS : THREADS])
                place += size * THREADS

    began = time.monotonic()
    with ProcessTreeMemory(list(server.instance.process_tree), 0.5) as memory, ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(one_thread, range(THREADS)))
    return growth(memory.total, _WARM_UP * (time.monotonic() - began))


if __name__ == "__main__":
    main()
