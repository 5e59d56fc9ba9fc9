"""The text of `tensorrt_llm_bls`: the whole so far where wanted, with or without special tokens, up to a stop word."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from inflight_client import Client

from inflight.deploy.repository.configure import DeploymentOptions
from inflight.deploy.server.server import Server
from tests.fixtures.crashes import shared_server
from tests.fixtures.engines import TinyEngine
from tests.fixtures.server import STEP_SECONDS, fake_engine
from tests.serving.bls.bls_requests import BLS, PROMPTS, ask, of_both, same, told, words
from tests.serving.raw_requests import GrpcConnection


@pytest.fixture(scope="module")
def accumulating_server(tiny_engine: TinyEngine) -> Iterator[Server]:
    """Its scripted model says the whole text so far, its texts show special tokens, and its engine drafts by itself."""
    parameters = {
        **fake_engine(step_seconds=STEP_SECONDS),
        BLS: {"engine_speculates": "true"},
        "postprocessing": {"skip_special_tokens": "false"},
    }
    options = DeploymentOptions(accumulate_tokens=True, parameters=parameters)
    with shared_server(tiny_engine("llama"), options) as running:
        yield running


def test_accumulated_text_is_the_whole_so_far(accumulating_server: Server) -> None:
    several: list[dict[str, Any]] = [{}, {"stop_words": words("lazy d", "🍰, a")}]
    asked = [(prompt, values) for values in several for prompt in PROMPTS]
    with GrpcConnection(accumulating_server.grpc_address) as connection:
        theirs, ours = of_both(connection, 25, asked)
        (whole,) = ask(connection, PROMPTS[0], 25, stream=False, exclude_input_in_output=True).finish()
    for deltas, wholes in zip(theirs, ours, strict=True):
        assert wholes[-1].text == told(deltas)[0]
        assert all(later.text.startswith(one.text) for one, later in pairwise(wholes))
    assert whole.text == ours[0][-1].text


def test_our_client_gives_of_accumulated_text_what_is_new(accumulating_server: Server) -> None:
    for prompt in PROMPTS:
        said = []
        for model in ("ensemble", BLS):
            with Client(accumulating_server.grpc_address, model=model) as client:
                stream = client.stream(prompt, max_tokens=25)
                assert len(list(stream)) > 3
            said.append((stream.text, stream.generation and stream.generation.usage))
        assert said[0] == said[1]


def test_where_the_engine_speculates_a_request_for_drafts_is_served_as_any_other(accumulating_server: Server) -> None:
    with GrpcConnection(accumulating_server.grpc_address) as connection:
        *_, last = ask(connection, PROMPTS[0], 10, num_draft_tokens=np.array([[3]], np.int32)).finish()
    assert last.text.endswith("The quick brown fox jumps over the lazy dog")


def test_special_tokens_are_text_where_the_deployment_shows_them(accumulating_server: Server) -> None:
    with GrpcConnection(accumulating_server.grpc_address) as connection:
        (theirs,), (ours,) = of_both(connection, 30, [(PROMPTS[0], {"stop_words": words("dog.<|start")})])
    text = "<|startoftext|>The quick brown fox jumps over the lazy "
    assert told(theirs)[:2] == (text, "stop_word")
    assert (ours[-1].text, ours[-1].finish_reason) == (text, "stop_word")


STOPPED = [
    (0, ["own f"]),
    (0, ["fox"]),
    (0, ["umps over", "zebra"]),
    (0, ["never said"]),
    (0, [" lazy", "The q"]),
    (1, ["京都の"]),
    (2, ["🍰"]),
    (2, ["‍👧"]),
]
"""Prompts by their number, and stop words, some of which the answers hold."""


@pytest.mark.parametrize("name", ["paced_server", "foreign_server"])
def test_stop_words_are_cut_across_chunks(serving: Callable[[str], Server], name: str) -> None:
    whole = {"stream": False, "exclude_input_in_output": True}
    asked = []
    for prompt, stop_words in STOPPED:
        values = {"stop_words": words(*stop_words)}
        asked += [(PROMPTS[prompt], one) for one in (values, {**values, **whole}, {**values, "min_tokens": 14})]
    found = same(serving(name), 30, asked, in_turn=name == "foreign_server")
    for (prompt, stop_words), streamed, at_once in zip(STOPPED, found[::3], found[1::3], strict=True):
        assert streamed == at_once
        expected = [word for word in stop_words if word in PROMPTS[prompt]]
        assert streamed[1] == ("stop_word" if expected else "length")
        assert not any(word in streamed[0] for word in stop_words)


def test_nothing_is_held_back_that_begins_no_stop_word(paced_server: Server) -> None:
    with GrpcConnection(paced_server.grpc_address) as connection:
        watched = ask(connection, PROMPTS[0], 400, stop_words=words("zebra"))
        watched.wait_for(5)
        assert not watched.ended.is_set()
        watched.cancel()
