"""Prompts become token ids in threads: a long one is refused early, and no short one waits for it."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from inflight_client import Deployment

from inflight.gateway import model_text
from inflight.gateway.model_text import ModelText
from inflight.gateway.settings import GatewaySettings
from inflight.openai_api.errors import ApiError
from tests.fixtures.engines import TinyEngine
from tests.fixtures.errors import raises


@pytest.fixture(scope="module")
def text(tiny_engine: TinyEngine) -> ModelText:
    settings = GatewaySettings(("127.0.0.1:9",), tokenizer=str(tiny_engine("llama")))
    return ModelText.load(Deployment("tensorrt_llm", "inflight", {}, {}), settings)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"])
def test_the_digest_is_another_one_if_what_decides_on_tokens_changes(
    text: ModelText, tiny_engine: TinyEngine, tmp_path: Path, name: str
) -> None:
    copy = shutil.copytree(tiny_engine("llama"), tmp_path / "engine")
    with (copy / name).open("a") as file:
        file.write("\n" if (copy / name).stat().st_size else "{}")
    settings = GatewaySettings(("127.0.0.1:9",), tokenizer=str(copy))
    assert ModelText.load(Deployment("tensorrt_llm", "inflight", {}, {}), settings).digest != text.digest


def test_a_far_too_long_prompt_is_refused_before_it_is_tokenized_whole(
    text: ModelText, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight million characters in pieces; each piece is one call in a thread."""
    pieces: list[bool] = []
    in_thread = model_text._in_thread

    async def counted(long: bool, *work: Any) -> Any:
        pieces.append(long)
        return await in_thread(long, *work)

    monkeypatch.setattr(model_text, "_in_thread", counted)
    with raises(ApiError, "prompt_too_long"):
        asyncio.run(text.encode("tea " * 2_000_000, {}, max_tokens=16_000))
    assert 1 < len(pieces) < 50


def test_a_short_prompt_waits_for_no_long_one(text: ModelText) -> None:
    async def finished() -> list[str]:
        order: list[str] = []

        async def encode(name: str, prompt: str) -> None:
            await text.encode(prompt, {})
            order.append(name)

        async with asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(encode("long", "a cup of tea " * 8_000))
            await asyncio.sleep(0)
            for _ in range(20):
                group.create_task(encode("short", "a cup of tea"))
        return order

    assert asyncio.run(finished())[:20].count("short") >= 18, "the first long ones may end between them"
