"""`inflight transcribe`: print what is said in audio files."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from inflight_client import Client, DeadlineExceeded, InvalidRequest, ServerGone
from inflight_client.audio import MAX_SECONDS, TranscribedBlock, Transcription, duration
from inflight_client.audio.formats import FORMATS, FORMS_OF_TEXT, verbose

from inflight.commands.option_sections import SectionedCommand, section
from inflight.commands.options.call import RETRY_TIMEOUT
from inflight.commands.options.connection import connection_options, open_client
from inflight.commands.options.numbers import Number, Seconds
from inflight.commands.terminal.standard_streams import printable, standard_input, stdout_is_terminal
from inflight.common.atomic_files import write_atomic

_OPTIONS = (
    *("language", "task", "prompt", "temperature", "beam_width", "word_timestamps", "priority", "timeout"),
    "max_seconds",
)
"""Those of the client's call."""


@click.command(cls=SectionedCommand, short_help="Print what is said in audio files.")
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@section(
    "Audio",
    click.option("--language", help="Language that is spoken, such as en.  [default: found in each file]"),
    click.option("--to-english", "task", flag_value="translate", default="transcribe", help="Translate into English."),
    click.option("--prompt", help="Words that may come, such as names, and the style of the text."),
    click.option(
        "--temperature", type=Number(0, 1), default=0.0, show_default=True, help="First sampling temperature to try."
    ),
    click.option("--beam-width", type=click.IntRange(1, 16), default=1, show_default=True, help="Number of beams."),
    click.option("--word-timestamps", is_flag=True, help="Find the times of words too, for verbose_json and --json."),
    click.option(
        "--max-seconds",
        type=Seconds(exclusive=True),
        default=MAX_SECONDS,
        show_default=True,
        help="Refuse audio that is longer.",
    ),
    connection_options,
    click.option("--timeout", type=Seconds(exclusive=True), help="Timeout for each file, in seconds."),
    click.option("--priority", type=int, default=0, show_default=True, help="Higher goes first in the queue."),
    RETRY_TIMEOUT,
    starts={"timeout": "Time limits"},
)
@section(
    "Output",
    click.option(
        "--format",
        "form",
        type=click.Choice(list(FORMATS)),
        default="text",
        show_default=True,
        help="Format of a transcript.",
    ),
    click.option(
        "--out",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        help="Write the transcript of each file to a file of the same name in this directory, instead of printing it.",
    ),
    click.option(
        "--json",
        "as_json",
        is_flag=True,
        help="Print JSON objects, one per line: file, and what verbose_json has.",
    ),
)
def command(
    files: tuple[str, ...], form: str, out: Path | None, as_json: bool, retry_timeout: float, **arguments: Any
) -> None:
    """Print what is said in each FILE (wav, flac, ogg or mp3); - reads a file from standard input.

    A file is sent in blocks of at most 30 s. Its text is printed block by block.

    \b
      inflight transcribe meeting.flac
      inflight transcribe *.mp3 --format srt --out subtitles/
      inflight transcribe interview.ogg --language de --to-english
      inflight transcribe call.wav --word-timestamps --json | jq -r '.words[].word'
      curl -s https://example.com/talk.mp3 | inflight transcribe -
    """  # fmt: skip
    if arguments["word_timestamps"] and not as_json and form != "verbose_json":
        raise click.UsageError("only verbose_json and --json have the times of words; leave out --word-timestamps.")
    if len(files) > 1 and out is None and not as_json and form != "text":
        raise click.UsageError(f"several files can't be printed as {form}; give --out DIR, or --json.")
    if as_json and (out is not None or form != "text"):
        raise click.UsageError("--json has its own format; leave out --out and --format.")
    if out is not None and len({Path(file).stem for file in files}) < len(files):
        raise click.UsageError("two files have the same name without its ending; transcribe them one by one.")
    targets = {_target(out, file, form).resolve() for file in files} if out is not None else ()
    for file in files:
        if Path(file).resolve() in targets:
            raise click.UsageError(f"--out would write over {file}; name another directory.")
    options = {name: arguments.pop(name) for name in _OPTIONS}
    options["timestamps"] = as_json or form not in FORMS_OF_TEXT
    work = _Work()
    with open_client(arguments, retry_timeout) as client:
        for file in files:
            try:
                with _shown(file, out is None and form == "text" and not as_json) as on_block:
                    found = _transcribe(client, file, options, on_block)
                work.seconds += found.duration
                if as_json:
                    click.echo(json.dumps({"file": file, **verbose(found)}, ensure_ascii=False))
                elif out is not None:
                    _write(_target(out, file, form), FORMATS[form](found))
                elif form != "text":
                    click.echo(FORMATS[form](found), nl=False)
            except (InvalidRequest, DeadlineExceeded, ServerGone) as error:  # of this file; others may be transcribed
                work.failed += 1
                click.echo(f"Error: {file}: {error} [{error.code}]", err=True)
    click.echo(work.line(len(files)), err=True)
    if work.failed:
        sys.exit(1)


@dataclass
class _Work:
    """What a command has transcribed."""

    seconds: float = 0.0
    failed: int = 0
    started: float = field(default_factory=time.monotonic)

    def line(self, files: int) -> str:
        took = time.monotonic() - self.started
        failed = f", {self.failed} failed" if self.failed else ""
        speed = f", {self.seconds / took:.1f} times real time" if self.seconds else ""
        what = f"{files} file{'' if files == 1 else 's'}{failed}"
        return f"[{what}, {_clock(self.seconds)} of audio in {took:.1f} s{speed}]"


_OnBlock = Callable[[TranscribedBlock], None]


def _transcribe(client: Client, file: str, options: dict[str, Any], on_block: _OnBlock) -> Transcription:
    audio: Any = standard_input().read() if file == "-" else file
    blocks = []
    for block in client.transcribe_blocks(audio, **options):
        on_block(block)
        blocks.append(block)
    return Transcription.join(blocks, options["task"], options["language"])


@contextmanager
def _shown(file: str, as_text: bool) -> Iterator[_OnBlock]:
    """Yield what shows a block: its text as a part of a line if `as_text`, and how far the file is on a terminal."""
    shows_progress = sys.stderr is not None and sys.stderr.isatty() and not (as_text and stdout_is_terminal())
    length: float | None = None
    if shows_progress and file != "-":
        length = duration(file)
    printed = False

    def on_block(block: TranscribedBlock) -> None:
        nonlocal printed
        text = block.text if printed else block.text.lstrip()
        if as_text and text:
            click.echo(printable(text) if stdout_is_terminal() else text, nl=False)
            printed = True
        if shows_progress:
            of = f" of {_clock(length)}" if length is not None else ""
            click.echo(f"\r{file}: {_clock(block.end)}{of} ", nl=False, err=True)

    try:
        yield on_block
    finally:
        if as_text:
            click.echo()
        if shows_progress:
            click.echo("\r\x1b[K", nl=False, err=True)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def _target(folder: Path, file: str, form: str) -> Path:
    suffix = {"text": "txt", "verbose_json": "json"}.get(form, form)
    return folder / f"{Path(file).stem if file != '-' else 'stdin'}.{suffix}"


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text)
    except OSError as error:
        raise click.BadParameter(f"{path}: {error.strerror or error}.", param_hint="'--out'") from error
