"""The gateway in front of TensorRT-LLM's C++ backend: it tokenizes, names the end tokens, and decodes by itself."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from inflight.deploy.server.server import Server
from tests.fixtures.gateway import running_gateway
from tests.fixtures.waiting import wait_until
from tests.serving.tensorrtllm.echo import ENDLESS, QUEUE, TEXTS, TOKENIZER, ids_of
from tests.text.example_tokenizers import ADDED


@pytest.fixture(scope="module")
def api(cpp_server: Server) -> Iterator[openai.OpenAI]:
    with (
        running_gateway(cpp_server) as gateway,
        openai.OpenAI(base_url=gateway.url, api_key="none", max_retries=0, timeout=60) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def model(api: openai.OpenAI) -> str:
    return api.models.list().data[0].id


def continued(ids: list[int], times: int) -> str:
    """Return the text of an answer that repeats the prompt, as a continuation of it."""
    text: str = TOKENIZER.decode(ids * (1 + times))
    return text[len(TOKENIZER.decode(ids)) :]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("stream", [True, False])
def test_answers_have_their_text_usage_and_reason(api: openai.OpenAI, model: str, text: str, stream: bool) -> None:
    ids = ids_of(text)
    count = 3 * len(ids)
    if stream:
        chunks = list(
            api.completions.create(
                model=model, prompt=text, max_tokens=count, stream=True, stream_options={"include_usage": True}
            )
        )
        said = "".join(choice.text for chunk in chunks for choice in chunk.choices)
        usage, reason = chunks[-1].usage, chunks[-2].choices[0].finish_reason
    else:
        whole = api.completions.create(model=model, prompt=text, max_tokens=count)
        said, usage, reason = whole.choices[0].text, whole.usage, whole.choices[0].finish_reason
    assert (said, reason) == (continued(ids, 3), "length")
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(ids), count)


def test_prompts_of_token_ids_are_used_as_they_are(api: openai.OpenAI, model: str) -> None:
    ids = ids_of(TEXTS[0])[3:7]
    whole = api.completions.create(model=model, prompt=ids, max_tokens=4)
    assert whole.choices[0].text == continued(ids, 1)


def test_an_answer_ends_before_its_stop_word(api: openai.OpenAI, model: str) -> None:
    whole = api.completions.create(model=model, prompt=TEXTS[0], max_tokens=60, stop=" two")
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == (" the tea  and", "stop")


def test_an_answer_ends_at_each_end_token_of_the_model(api: openai.OpenAI, model: str) -> None:
    whole = api.completions.create(model=model, prompt=f"the tea {ADDED} and two", max_tokens=50)
    assert whole.choices[0].finish_reason == "stop"
    assert whole.choices[0].text.startswith(" the tea")
    assert "two" not in whole.choices[0].text


def test_a_client_that_leaves_makes_room(api: openai.OpenAI, model: str) -> None:
    def left_early() -> bool:
        try:
            with api.completions.create(model=model, prompt=TEXTS[0], max_tokens=ENDLESS, stream=True) as stream:
                next(iter(stream))
        except openai.RateLimitError:
            return False
        return True

    for _ in range(2 * QUEUE):
        wait_until(left_early)
