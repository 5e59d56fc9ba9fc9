"""Runs a program that ends with its parent: `python -I guarded.py END PROGRAM…`.

Standard input is a pipe from the parent. When it closes, however the parent ended, END (a command as JSON, [] for
none) is run, and then everything in this process' group is killed, including what the program started.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading


def main() -> int:
    end, program = json.loads(sys.argv[1]), sys.argv[2:]
    threading.Thread(target=_watch, args=(end,), daemon=True).start()
    code = subprocess.Popen(program, stdin=subprocess.DEVNULL).wait()
    return code if code >= 0 else 128 - code


def _watch(end: list[str]) -> None:
    while os.read(0, 1024):
        pass
    if end:
        subprocess.run(end, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
