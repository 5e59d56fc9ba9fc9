"""A workload from what was asked for."""

from __future__ import annotations

from collections.abc import Mapping

from loadtests.ask import Workload
from loadtests.workloads.lengths import distribution
from loadtests.workloads.spec import WorkloadSpec
from loadtests.workloads.synthetic import Synthetic
from loadtests.workloads.words import Words


def make_workload(spec: WorkloadSpec, files: Mapping[str, bytes], seed: int) -> Workload:
    """The sessions that `spec` asks for, out of `files` as `load_files` gave them; checked as a whole.

    A session's number and the seed decide everything about it. Raises LoadError.
    """
    return Synthetic(
        distribution(spec.input_tokens, "input_tokens", lambda name: []),
        distribution(spec.output_tokens, "output_tokens", lambda name: []),
        Words(spec.tokens_per_word),
        seed,
    )
