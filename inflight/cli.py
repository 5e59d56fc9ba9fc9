"""The `inflight` command, which imports the module of a subcommand only when that is called."""

from __future__ import annotations

import sys
from typing import NoReturn

import click

from inflight import __version__
from inflight.common.atomic_files import DISK_FULL_ERRORS
from inflight.lazy_group import LazyGroup, name_source

COMMANDS = {
    "assemble": ("inflight.commands.assemble", "Export a model repository for another Triton server."),
    "audit": ("inflight.commands.audit", "The audit log of the gateway: verify, summarize."),
    "batch": ("inflight.commands.batch.group", "Offline batch jobs: run, status, resume, retry, verify, cancel."),
    "build": ("inflight.commands.build.command", "Compile a Hugging Face checkpoint into an engine directory."),
    "cache": ("inflight.commands.cache", "The response cache of the gateway: clear."),
    "chat": ("inflight.commands.chat.command", "Chat with the model of a server."),
    "checkpoint": ("inflight.commands.checkpoint", "Create a checkpoint with random weights, offline."),
    "classify": ("inflight.commands.encode.classify", "Print the classes of texts."),
    "demo": ("inflight.commands.demo", "Run everything once with a small real model: engine, server, answers, load."),
    "doctor": ("inflight.commands.doctor", "Check this machine and show how to fix problems."),
    "embed": ("inflight.commands.encode.embed", "Print the embeddings of texts."),
    "evaluate": (
        "inflight.commands.evaluate.group",
        "Score a model over a golden set: run, compare, gate, precisions.",
    ),
    "gateway": ("inflight.commands.gateway", "An OpenAI-compatible API in front of Triton servers."),
    "generate": ("inflight.commands.generate", "Send a prompt to a server and stream the answer."),
    "key": ("inflight.commands.key.group", "API keys of the gateway: add, list, revoke."),
    "list": ("inflight.commands.models.list_models", "List the engines in the cache."),
    "load": ("inflight.commands.load.group", "Load tests: run, sweep, compare, report."),
    "plan": ("inflight.commands.plan.command", "Estimate memory and show which configurations fit."),
    "pull": ("inflight.commands.models.pull", "Download a model and build its engine, without serving it."),
    "rerank": ("inflight.commands.encode.rerank", "Print documents by their relevance for a query."),
    "routes": ("inflight.commands.routes", "Routes of the gateway: check a file."),
    "rm": ("inflight.commands.models.rm", "Remove engines from the cache."),
    "serve": ("inflight.commands.serve", "Serve a model, a checkpoint or an engine on Triton."),
    "transcribe": ("inflight.commands.transcribe", "Print what is said in audio files."),
    "translate": ("inflight.commands.encode.translate", "Print translations or summaries of texts."),
    "tune": ("inflight.commands.tune", "Find the fastest settings for a checkpoint or an engine."),
    "status": ("inflight.commands.status.command", "Show server status: readiness, models, load."),
}

COMMAND_SECTIONS = {
    "Serve": ("serve", "gateway", "routes", "key", "audit", "cache", "status"),
    "Use": ("chat", "generate", "embed", "rerank", "classify", "transcribe", "translate", "batch", "evaluate", "load"),
    "Models": ("pull", "list", "rm", "build", "plan", "tune", "assemble"),
    "Try out": ("demo", "doctor", "checkpoint"),
}

# Commands of vLLM, Ollama, OVMS, Triton's tools and other programs, and what to use instead.
COMMAND_HINTS = {
    **dict.fromkeys(("bench", "benchmark", "profile"), "`inflight load run`"),
    **dict.fromkeys(("ps", "top", "info"), "`inflight status`"),
    **dict.fromkeys(("ls", "models", "images", "show"), "`inflight list`"),
    **dict.fromkeys(("remove", "delete", "rmi", "prune"), "`inflight rm`"),
    **dict.fromkeys(("download", "fetch", "add"), "`inflight pull`"),
    **dict.fromkeys(("import", "convert", "compile", "create", "quantize"), "`inflight build`"),
    **dict.fromkeys(("start", "up", "launch"), "`inflight serve`"),
    **dict.fromkeys(
        ("stop", "down", "kill"), "Ctrl-C in the terminal of `inflight serve`, or send its process SIGTERM"
    ),
    **dict.fromkeys(("login", "logout"), "the variable HF_TOKEN, or `hf auth login`"),
    **dict.fromkeys(("optimize", "autotune", "sweep"), "`inflight tune`"),
    "run": "`inflight serve` to start a server, `inflight chat` to talk to it, `inflight batch run` for many prompts",
    "run-batch": "`inflight batch run`",
    "complete": "`inflight generate`",
    **dict.fromkeys(("embeddings", "embedding", "encode"), "`inflight embed`"),
    **dict.fromkeys(("text2text", "summarize", "summarise"), "`inflight translate`"),
    **dict.fromkeys(("whisper", "audio", "speech", "subtitles"), "`inflight transcribe`"),
    **dict.fromkeys(("eval", "lm-eval"), "`inflight evaluate run`"),
    **dict.fromkeys(("score", "rank"), "`inflight rerank`"),
    "collect-env": "`inflight doctor`",
    "version": "`inflight --version`",
}

# A missing module of these packages is a defect; any other may belong to an extra that is not installed.
OWN_PACKAGES = ("inflight", "inflight_client", "build_engines", "loadtests")


@click.group(
    cls=LazyGroup,
    commands=COMMANDS,
    hints=COMMAND_HINTS,
    sections=COMMAND_SECTIONS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, "-V", "--version", prog_name="inflight")
def cli() -> None:
    """Take a Hugging Face checkpoint, compile it, and serve it on NVIDIA Triton with in-flight batching.

    \b
    inflight serve Qwen/Qwen2.5-0.5B-Instruct
    inflight generate "Tell me about tea."
    inflight chat
    """


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 wrong usage, 130 interrupted.

    An exception with a `code` (one of `inflight_client.errors`) is a user's mistake and is printed as one sentence.
    Any other exception is a defect and keeps its traceback.
    """
    try:
        cli.main(args=arguments, prog_name="inflight", standalone_mode=False, auto_envvar_prefix="INFLIGHT")
    except click.ClickException as error:
        if isinstance(error, click.BadParameter):
            name_source(error)
        if isinstance(error, click.NoSuchOption):
            from inflight.option_hints import with_suggestion

            error = with_suggestion(error)
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        click.echo("Interrupted.", err=True)
        sys.exit(130)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in OWN_PACKAGES:
            raise
        _fail(
            f"the package {error.name} is missing; install inflight with its extras, [build,serve,load,batch]",
            "package_missing",
        )
    except OSError as error:
        from inflight.commands.terminal.standard_streams import drop_output, is_output_error

        if not is_output_error(error):
            raise
        drop_output()
        why = "disk_full" if error.errno in DISK_FULL_ERRORS else ""
        _fail(f"standard output can't be written: {error.strerror}", why)
    except Exception as error:
        code = getattr(error, "code", None)
        if not isinstance(code, str):
            raise
        _fail(str(error), code)


def _fail(message: str, code: str) -> NoReturn:
    click.echo(f"Error: {message} [{code}]" if code else f"Error: {message}", err=True)
    sys.exit(1)
