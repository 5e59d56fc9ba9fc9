"""What `import inflight_client` costs the program that imports it."""

from __future__ import annotations

import subprocess
import sys

HEAVY = {"torch", "transformers", "openvino", "openvino_genai", "tokenizers", "pydantic", "inflight", "build_engines"}


def test_importing_the_client_takes_nothing_heavy() -> None:
    program = f"import sys, inflight_client; print(*sorted({HEAVY!r} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "\n"


def test_what_the_package_offers_is_there() -> None:
    import inflight_client

    for name in inflight_client.__all__:
        assert getattr(inflight_client, name)
