"""Runs a program that ends with its parent: `python -I child_guard.py STOP_COMMAND PROGRAM…`.

Standard input is a pipe from the parent. When it closes, this process runs STOP_COMMAND (a command as JSON, [] for
none) and kills its process group, including what the program started.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading


def main() -> int:
    stop_command, program = json.loads(sys.argv[1]), sys.argv[2:]
    threading.Thread(target=_watch, args=(stop_command,), daemon=True).start()
    code = subprocess.Popen(program, stdin=subprocess.DEVNULL).wait()
    return code if code >= 0 else 128 - code


def _watch(stop_command: list[str]) -> None:
    while os.read(0, 1024):
        pass
    if stop_command:
        null = subprocess.DEVNULL
        subprocess.run(stop_command, stdin=null, stdout=null, stderr=null, check=False)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
