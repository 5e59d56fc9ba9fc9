"""Asks the tests that failed beside others once more, one at a time; few failures may be the machine's, many are not.

A test that passes now has failed all the same: its name and how it failed stand above, and it wants a cause.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

CACHE = Path(__file__).resolve().parents[1] / ".pytest_cache" / "v" / "cache" / "lastfailed"
MOST = 3
"""Of some six thousand."""


def main() -> int:
    failed = sorted(json.loads(CACHE.read_text())) if CACHE.is_file() else []
    if not 0 < len(failed) <= MOST:
        return 1
    print(f"\nOnce more, by themselves: {', '.join(failed)}\n", flush=True)
    code = subprocess.call([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *failed])
    if code == 0:
        print(f"\nFLAKY, failed beside other tests and passed alone: {', '.join(failed)}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
