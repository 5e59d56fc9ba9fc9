"""The wording of a build's errors; INFLIGHT_UPDATE_GOLDEN=1 writes messages.txt again."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

from build_engines.checkpoints.hub import HubModel
from build_engines.checkpoints.locate import locate_checkpoint
from build_engines.checkpoints.model_facts import read_facts
from build_engines.checkpoints.safetensors_header import check_safetensors
from build_engines.llmapi.arguments import LlmArguments, read_arguments
from build_engines.llmapi.target import check_architecture
from build_engines.machine import parse_gpus
from build_engines.manifest import EncoderTask
from build_engines.model_cache.cache import ModelCache
from build_engines.model_cache.obtain import check_revision
from build_engines.plan.formats import kv_format, weight_format
from build_engines.plan.size import parse_size
from build_engines.progress import NoBuildProgress
from build_engines.target import BuildOptions, check_precisions, find_target
from build_engines.tensorrt_llm.engine_config import check_engine
from build_engines.tensorrt_llm.rules.machine import check_calibration, check_path
from tests.build_engines.checkpoints.test_model_facts import SIZES
from tests.build_engines.encoders.test_settings import UNSUITABLE, WRONG_TASKS, Edit, settings
from tests.build_engines.tensorrt_llm.models import ARCHITECTURES, recipe_of
from tests.build_engines.tensorrt_llm.test_engine_config import LOG, changed
from tests.build_engines.tensorrt_llm.test_engine_config import recipe as engine_recipe
from tests.build_engines.tensorrt_llm.test_engine_config import write as write_engine
from tests.fixtures.encoders import tiny_encoder_checkpoint
from tests.fixtures.errors import Cause, check_messages


def test_sentences(tmp_path: Path) -> None:
    def written(name: str, text: str) -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    def unsupported(architecture: str, **config: Any) -> Cause:
        return partial(check_architecture, model, {"architectures": [architecture], **config}, False)

    def engine(name: str, config: dict[str, Any]) -> Cause:
        (tmp_path / name).mkdir()
        write_engine(tmp_path / name, config)
        return partial(check_engine, tmp_path / name, engine_recipe(), "1.2.1", LOG)

    def encoder(
        name: str, of: EncoderTask, task: EncoderTask, edit: Edit = lambda directory: None, **options: Any
    ) -> Cause:
        source = tiny_encoder_checkpoint(of)
        directory = shutil.copytree(source, tmp_path / name, ignore=shutil.ignore_patterns("*.safetensors"))
        edit(directory)
        return partial(settings, directory, task, **options)

    model = Path("/models/llama")
    causes: list[Cause] = [
        partial(locate_checkpoint, "~nosuch/x", NoBuildProgress()),
        partial(locate_checkpoint, "runs/exp-", NoBuildProgress()),
        partial(ModelCache(tmp_path / "cache").find, "tests/tea"),
        partial(check_revision, "./my-checkpoint", "v2"),
        HubModel("tests/tea", None, "1" * 40, ()).check_weights,
        partial(read_facts, model, {key: value for key, value in SIZES.items() if key != "vocab_size"}),
        partial(read_facts, model, {**SIZES, "hidden_size": "4096"}),
        partial(read_facts, model, {**SIZES, "num_hidden_layers": 10**18}),
        partial(read_facts, model, {**SIZES, "rope_scaling": [1]}),
        partial(check_safetensors, written("short.safetensors", "")),
        partial(read_arguments, tmp_path / "absent.yaml"),
        partial(read_arguments, written("broken.yaml", "a: [")),
        partial(read_arguments, written("part.yaml", "kv_cache_config: 4\n"), ["kv_cache_config.max_tokens=4"]),
        partial(parse_gpus, "Unable to determine\n"),
        partial(weight_format, "fp8", openvino=True),
        partial(weight_format, "int3", openvino=False),
        partial(kv_format, "fp8", openvino=True),
        partial(parse_size, "much"),
        partial(check_precisions, BuildOptions(precision="fp8")),
        partial(check_precisions, BuildOptions(target="tensorrt-llm", precision="int4")),
        partial(check_precisions, BuildOptions(kv_precision="int8")),
        partial(check_precisions, BuildOptions(target="vulkan")),
        partial(find_target, BuildOptions(target="tensorrt-llm", settings="fp8")),
        partial(find_target, BuildOptions("llmapi", max_seq_len=64, settings=LlmArguments(max_seq_len=32))),
        partial(find_target, BuildOptions("llmapi", precision="fp16", settings=LlmArguments(dtype="bfloat16"))),
        unsupported("T5ForConditionalGeneration", is_encoder_decoder=True),
        *(unsupported(name) for name in ("BertModel", "GPT2LMHeadModel", "BrandNewForCausalLM")),
        partial(
            check_path, recipe_of({"quantization": "fp8"}), ARCHITECTURES["LlamaForCausalLM"], Path("/prompts/llama")
        ),
        partial(check_calibration, recipe_of({"quantization": "fp8", "calibration.dataset": "/nowhere"})),
        partial(check_engine, tmp_path, recipe_of({}), "1.2.1", LOG),
        engine("version", changed("version", "1.1.0")),
        engine("parallel", changed("pretrained_config.mapping.tp_size", 2)),
        engine("quantization", changed("pretrained_config.quantization.quant_algo", None)),
        engine("limit", changed("build_config.max_batch_size", 4)),
        *(encoder(f"encoder-{place}", "embed", "embed", edit) for place, (edit, _) in enumerate(UNSUITABLE)),
        *(encoder(f"task-{place}", of, task, **more) for place, (of, task, more, _) in enumerate(WRONG_TASKS)),
    ]
    check_messages(Path(__file__).with_name("messages.txt"), causes, tmp_path)
