"""LoRA adapters answer as the checkpoint does with their product added to its weights."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from inflight.common.request_error import RequestError
from inflight.runtime.backends.openvino.model_runner import OpenVinoModelRunner
from inflight.runtime.engine.interface import EngineOptions
from inflight.runtime.engine.supervisor import EngineProcess
from inflight.runtime.messages import GenerationRequest, TokenEvent
from tests.fixtures.errors import raises
from tests.fixtures.waiting import wait_until
from tests.runtime.backends.drive_runner import run

PROMPT = tuple(range(10, 50))
PREFIX = "base_model.model."


def write_adapter(checkpoint: Path, out: Path, rank: int, modules: tuple[str, ...], config: dict[str, object]) -> Path:
    """As PEFT writes them: a pair of matrices for each module, and how strongly they work."""
    generator = torch.Generator().manual_seed(rank)
    tensors = {}
    for name, weight in load_file(checkpoint / "model.safetensors").items():
        if any(module in name for module in modules):
            rows, columns = weight.shape
            base = PREFIX + name.removesuffix(".weight")
            tensors[f"{base}.lora_A.weight"] = torch.randn(rank, columns, generator=generator) / columns**0.5
            tensors[f"{base}.lora_B.weight"] = torch.randn(rows, rank, generator=generator) / 2
    out.mkdir()
    save_file(tensors, out / "adapter_model.safetensors")
    (out / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank} | config))
    return out


def merged_answer(checkpoint: Path, adapter: Path | None, scale: float, tokens: int) -> list[int]:
    """The greedy answer of the checkpoint with the adapter's product added to its weights."""
    model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    if adapter is not None:
        tensors = load_file(adapter / "adapter_model.safetensors")
        weights = dict(model.named_parameters())
        for name in tensors:
            if name.endswith("lora_A.weight"):
                weight = weights[name.removeprefix(PREFIX).replace("lora_A.", "")]
                weight.data += scale * (tensors[name.replace("lora_A", "lora_B")] @ tensors[name])
    ids = torch.tensor([PROMPT])
    given = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False, eos_token_id=None
    )
    return list(given[0, len(PROMPT) :].tolist())


@pytest.fixture(scope="module")
def checkpoint(tiny_checkpoint: Callable[[str], Path]) -> Path:
    return tiny_checkpoint("llama")


@pytest.fixture(scope="module")
def adapters(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("adapters")
    return [
        write_adapter(checkpoint, place / "one", 4, ("q_proj", "v_proj", "down_proj"), {"lora_alpha": 8}),
        write_adapter(
            checkpoint, place / "two", 9, ("k_proj", "o_proj", "gate_proj"), {"lora_alpha": 3, "use_rslora": True}
        ),
    ]


@pytest.fixture(scope="module")
def options(tiny_engine: Callable[[str], Path], adapters: list[Path]) -> EngineOptions:
    return EngineOptions(
        "openvino",
        str(tiny_engine("llama")),
        64 * 32,
        max_num_sequences=8,
        max_num_tokens=48,
        adapters=tuple(map(str, adapters)),
    )


@pytest.fixture(scope="module")
def stepper(options: EngineOptions) -> OpenVinoModelRunner:
    return OpenVinoModelRunner(options)


@pytest.fixture(scope="module")
def expected(checkpoint: Path, adapters: list[Path]) -> list[list[int]]:
    return [
        merged_answer(checkpoint, None, 0, 30),
        merged_answer(checkpoint, adapters[0], 8 / 4, 30),
        merged_answer(checkpoint, adapters[1], 3 / 9**0.5, 30),
    ]


def test_each_adapter_answers_as_if_it_were_merged(stepper: OpenVinoModelRunner, expected: list[list[int]]) -> None:
    """All at once and again, though all ask with the same prompt: keys and values are each adapter's own."""
    assert len({tuple(answer) for answer in expected}) == 3
    numbers = (0, 1, 2, 2, 1, 0, 2, 0)
    for _ in range(2):
        answers = run(stepper, *(GenerationRequest(PROMPT, 30, adapter=number) for number in numbers))
        assert [answer.token_ids for answer in answers] == [expected[number] for number in numbers]


def test_a_file_alone_works_as_it_is(
    options: EngineOptions, checkpoint: Path, adapters: list[Path], tmp_path: Path
) -> None:
    alone = tmp_path / "alone.safetensors"
    alone.write_bytes((adapters[0] / "adapter_model.safetensors").read_bytes())
    stepper = OpenVinoModelRunner(replace(options, adapters=(str(alone),)))
    (answer,) = run(stepper, GenerationRequest(PROMPT, 30, adapter=1))
    assert answer.token_ids == merged_answer(checkpoint, adapters[0], 1.0, 30)


def test_an_adapter_is_loaded_between_the_steps_of_others(
    options: EngineOptions, adapters: list[Path], expected: list[list[int]]
) -> None:
    """Also while requests run, whose keys and values stay; the process has it until it ends."""
    engine = EngineProcess(replace(options, adapters=(str(adapters[0]),)), restart=True)
    try:
        events: Queue[TokenEvent] = Queue()
        engine.submit(GenerationRequest(PROMPT, 400, adapter=1), events.put)
        events.get(timeout=60)
        assert engine.load_adapter(str(adapters[1])).result(timeout=60) == 2
        assert answer_of(engine, 2) == expected[2]
        assert answer_of(engine, 1) == answer_of(engine, 1) == expected[1]
        with raises(RequestError, "invalid_parameter", naming="/no/adapter"):
            engine.load_adapter("/no/adapter").result(timeout=60)
        with raises(RequestError, "invalid_parameter", naming="lora_task_id is 3"):
            answer_of(engine, 3)
        os.kill(engine.pid, signal.SIGKILL)
        wait_until(lambda: answers(engine, 1))
        assert engine.load_adapter(str(adapters[1])).result(timeout=60) == 2
        assert answer_of(engine, 2) == expected[2]
    finally:
        engine.close()


def answer_of(engine: EngineProcess, adapter: int) -> list[int]:
    events: Queue[TokenEvent] = Queue()
    engine.submit(GenerationRequest(PROMPT, 30, adapter=adapter), events.put)
    found: list[int] = []
    while True:
        event = events.get(timeout=60)
        found += event.token_ids
        if event.error is not None:
            raise RequestError(*event.error)
        if event.finish_reason is not None:
            return found


def answers(engine: EngineProcess, adapter: int) -> bool:
    with suppress(RequestError):
        return bool(answer_of(engine, adapter))
    return False


def test_an_adapter_may_be_given_twice(options: EngineOptions, adapters: list[Path], expected: list[list[int]]) -> None:
    first, second = map(str, adapters)
    stepper = OpenVinoModelRunner(replace(options, adapters=(first, first, second)))
    answers = run(stepper, *(GenerationRequest(PROMPT, 30, adapter=number) for number in range(4)))
    assert [answer.token_ids for answer in answers] == [expected[number] for number in (0, 1, 1, 2)]


def test_adapters_fit_compressed_weights(tiny_engine: Callable[..., Path], options: EngineOptions) -> None:
    """Their layers have other names in the graph. Each model is nearest to itself; bf16 kernels round differently."""

    def prompt_log_probs(precision: str) -> list[torch.Tensor]:
        stepper = OpenVinoModelRunner(replace(options, model_dir=str(tiny_engine("llama", precision=precision))))
        requests = (GenerationRequest(PROMPT, 1, adapter=number, prompt_log_probs=True) for number in range(3))
        return [torch.tensor(answer.prompt_log_probs[1:]) for answer in run(stepper, *requests)]

    exact = torch.stack(prompt_log_probs("fp32"))
    nearest = [int((exact - compressed).abs().mean(dim=1).argmin()) for compressed in prompt_log_probs("bf16")]
    assert nearest == [0, 1, 2]


def test_an_adapter_that_is_not_there_is_refused(
    stepper: OpenVinoModelRunner, tiny_engine: Callable[[str], Path], options: EngineOptions
) -> None:
    with raises(RequestError, "invalid_parameter", naming=("lora_task_id", "3", "1", "2")):
        run(stepper, GenerationRequest(PROMPT, 5, adapter=3))
    with raises(RequestError, "invalid_parameter", naming="lora_task_id"):
        run(OpenVinoModelRunner(replace(options, adapters=())), GenerationRequest(PROMPT, 5, adapter=1))


def test_an_adapter_that_cannot_work_is_named_at_once(
    options: EngineOptions, adapters: list[Path], tmp_path: Path
) -> None:
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"{}")
    nested = tmp_path / "nested.safetensors"
    nested.write_bytes((600_000).to_bytes(8, "little") + b'{"a":[' * 100_000)
    tensors = load_file(adapters[0] / "adapter_model.safetensors")
    foreign = tmp_path / "foreign.safetensors"
    save_file({name.replace("layers.1", "layers.7"): tensor for name, tensor in tensors.items()}, foreign)
    empty = tmp_path / "empty.safetensors"
    save_file({"weight": torch.zeros(2)}, empty)
    misshapen = tmp_path / "misshapen.safetensors"
    save_file({name: tensor[:, :3].contiguous() for name, tensor in tensors.items()}, misshapen)
    for path, said in (
        (tmp_path / "nowhere", "nowhere"),
        (broken, "broken.safetensors"),
        (nested, "nested.safetensors"),
        (foreign, "model.layers.7"),
        (empty, "empty.safetensors"),
        (misshapen, "misshapen.safetensors"),
    ):
        with raises(ValueError, naming=said):
            OpenVinoModelRunner(replace(options, adapters=(str(path),)))
