"""The export process: `build_engines.openvino.export_runner` starts it with `python -m`.

It reads the module, the name and the fields of an export task as JSON from standard input, calls the module's `export`,
and writes one JSON object per line to standard output:
`{"step": sentence}` for each step, and at the end `{"facts": ...}`, `{"error": sentence, "code": code}` or
`{"failure": reason, "errno": number}`. Output of the libraries goes to standard error, which is a log file.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
import traceback
from typing import TextIO

from build_engines.errors import BuildError
from inflight.common.process_guard import die_with_parent


def main() -> int:
    answers = _keep_stdout()
    die_with_parent()
    _disable_telemetry()
    _hide_unused_libraries()
    module, kind, fields = json.load(sys.stdin)
    try:
        exporter = importlib.import_module(module)
        facts = exporter.export(getattr(exporter, kind)(**fields), lambda sentence: _send(answers, {"step": sentence}))
    except BuildError as error:
        _send(answers, {"error": str(error), "code": error.code})
        return 1
    except Exception as error:
        traceback.print_exc()
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        _send(answers, {"failure": reason[:200], "errno": getattr(error, "errno", None)})
        return 1
    _send(answers, {"facts": dataclasses.asdict(facts)})
    # With torch and OpenVINO loaded, a normal exit of the interpreter takes seconds or crashes.
    sys.stderr.flush()
    os._exit(0)


def _keep_stdout() -> TextIO:
    """Return a copy of standard output, and redirect standard output of the libraries to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def _disable_telemetry() -> None:
    """Make OpenVINO and NNCF run without their telemetry package, as if it were not installed.

    It sends usage statistics by default, from a process that one of its threads forks: this can deadlock while the main
    thread imports a module.
    """
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]


def _hide_unused_libraries() -> None:
    """Make the export run without two libraries, as if they were not installed; they take three seconds of each.

    transformers imports scikit-learn, and pandas with it, for a kind of speculative decoding; OpenVINO imports NNCF's
    part for torch, and setuptools with it, to recognize models of NNCF's.
    """
    sys.modules["sklearn"] = None  # type: ignore[assignment]
    sys.modules["nncf.torch"] = None  # type: ignore[assignment]


def _send(answers: TextIO, message: dict[str, object]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


if __name__ == "__main__":
    sys.exit(main())
