"""Reads the files of a workload, once, on the machine where the run starts."""

from __future__ import annotations

from pathlib import Path

from loadtests.errors import LoadError
from loadtests.workloads.distributions import file_and_column, trace_reference
from loadtests.workloads.spec import WorkloadSpec

_SAMPLES = Path(__file__).parent.parent / "samples"
SAMPLE = "sample:"


def load_files(spec: WorkloadSpec) -> dict[str, bytes]:
    """Return the content of each file that the spec names, by its name there.

    Raises LoadError for a file that cannot be read.
    """
    generated = (spec.input_tokens, spec.output_tokens, spec.turn_tokens, spec.turns, spec.think_time)
    texts = (*generated, spec.cancel_after, spec.text_tokens, spec.query_tokens, spec.texts_per_request)
    references = (trace_reference(text) for text in texts if text is not None)
    named = [spec.prompts, spec.trace, *(file_and_column(reference)[0] for reference in references if reference)]
    files = {name: _read(_path(name), name) for name in named if name}
    if spec.tokenizer:
        files[spec.tokenizer] = _read(_tokenizer(spec.tokenizer), spec.tokenizer)
    return files


def sample_names() -> list[str]:
    """Return the names that are valid after `sample:`."""
    return sorted(path.stem for path in _SAMPLES.iterdir() if path.suffix in (".jsonl", ".csv"))


def _path(name: str) -> Path:
    if not name.startswith(SAMPLE):
        return Path(name).expanduser()
    sample = name.removeprefix(SAMPLE)
    if sample not in sample_names():
        raise LoadError(f"there is no sample {sample!r}; there are {', '.join(sample_names())}", "workload_invalid")
    return next(path for path in _SAMPLES.iterdir() if path.stem == sample)


def _tokenizer(name: str) -> Path:
    path = Path(name).expanduser()
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file():
        raise LoadError(
            f"tokenizer {name!r}: the directory has no tokenizer.json; name that of a checkpoint or engine",
            "workload_invalid",
        )
    return path


def _read(path: Path, name: str) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise LoadError(f"{name} can't be read: {why}", "workload_invalid") from None
