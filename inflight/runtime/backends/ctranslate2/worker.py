"""The child process of CTranslate2: `python -m inflight.runtime.backends.ctranslate2.worker FD`.

The library has crashed on damaged inputs, so it runs apart from Triton. The first message is the engine's settings,
whose answer is None or the reason why the engine can't be loaded. Each further one is the inputs of a batch; the answer
is the list of results, or the exception as a text. The process ends when its parent does.
"""

from __future__ import annotations

import os
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any

from inflight.common.cpu_affinity import use_engine_cores
from inflight.runtime.encoders.source_text import Text2TextSettings
from inflight.runtime.speech.clip import WhisperSettings


def serve(connection: Connection) -> None:
    """Answer until the parent closes the connection."""
    settings = connection.recv()
    try:
        model = _load(settings)
    except Exception as error:
        connection.send(_line(error))
        return
    connection.send(None)
    while True:
        inputs = connection.recv()
        try:
            connection.send(model.run(inputs))
        except Exception as error:
            connection.send(_line(error))


def _load(settings: WhisperSettings | Text2TextSettings) -> Any:
    if isinstance(settings, WhisperSettings):
        from inflight.runtime.backends.ctranslate2.whisper import Whisper

        return Whisper(settings)
    from inflight.runtime.backends.ctranslate2.text2text import Text2Text

    return Text2Text(settings)


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when Ctrl-C ends the engine
    use_engine_cores()
    try:
        serve(Connection(int(sys.argv[1])))
    except (BrokenPipeError, ConnectionResetError, EOFError):
        pass  # the parent has closed it, or exited
    sys.stderr.flush()
    os._exit(0)  # skips the shutdown of the library's threads


if __name__ == "__main__":
    main()
