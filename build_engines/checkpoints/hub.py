"""Models of the Hugging Face hub: what a name and a revision mean, and the download with its progress."""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import filter as matching
from pathlib import Path
from types import ModuleType

from build_engines.checkpoints.checkpoint import PICKLES, gguf_choice_error, gguf_files
from build_engines.checkpoints.ctranslate2_model import MODEL as CTRANSLATE2_MODEL
from build_engines.checkpoints.ctranslate2_model import seq2seq_task
from build_engines.checkpoints.openvino_ir import MODEL, WEIGHTS
from build_engines.errors import BuildError
from build_engines.progress import BuildProgress
from inflight.common.atomic_files import DISK_FULL_ERRORS, write_atomic

# The hub allows neither `--` nor `..` in a name.
_HUB_NAME = re.compile(r"(?!.*(--|\.\.))([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::([A-Za-z0-9][\w.-]*))?")
_SPLIT = re.compile(r"-\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)
MAIN_BRANCH = "main"
# sentence-transformers has its modules in folders, such as 1_Pooling.
CHECKPOINT_FILES = (
    *("*.json", "*.safetensors", "*.model", "*.jinja", "merges.txt", "vocab.txt"),
    *("[0-9]_*/config.json", "[0-9]_*/model.safetensors"),
    *(MODEL, WEIGHTS),
    *(CTRANSLATE2_MODEL, "*vocabulary.txt", "*.spm", PICKLES),
)
# Copies of the same weights in other formats are in other folders or under this name.
_EXCLUDE = ["consolidated*"]
_MODULE_FILE = re.compile(r"[0-9]_\w+/(config\.json|model\.safetensors)")
_POLL_SECONDS = 0.25
_FRUITLESS_ATTEMPTS = 3
_RETRY_SECONDS = 0.5
_CONNECTIONS = 8


@dataclass(frozen=True)
class HubFile:
    """A file to download, the name of its copy in the download cache, and its size; None if the hub does not say."""

    path: str
    blob: str | None
    size: int | None


@dataclass(frozen=True)
class HubModel:
    """A model of the hub at a commit, which `revision` names (None: its main branch).

    `files` is None if the hub can't be reached and an earlier download is used. `gguf` are the names of its files in
    GGUF, and `quantization` is what the name of the wanted one has.
    """

    name: str
    revision: str | None
    commit: str
    files: tuple[HubFile, ...] | None
    gguf: tuple[str, ...] = ()
    quantization: str | None = None

    @property
    def total_bytes(self) -> int | None:
        """Return the size of the download; None if it is unknown."""
        sizes = [file.size for file in self.files or ()]
        return None if self.files is None or None in sizes else sum(size or 0 for size in sizes)

    @property
    def is_ctranslate2(self) -> bool:
        """Return whether it is in CTranslate2's format, whose config.json does not say what the model is."""
        return any(file.path == CTRANSLATE2_MODEL for file in self.files or ())

    def check_weights(self) -> None:
        """Raise BuildError (`not_a_checkpoint`) for a model without usable weights, before anything is downloaded."""
        usable = ("*.safetensors", "*.gguf", MODEL, CTRANSLATE2_MODEL, PICKLES)
        names = [file.path.lower() for file in self.files or ()]
        if self.files is None or any(matching(names, pattern) for pattern in usable):
            return
        if self.gguf:
            raise gguf_choice_error(self.name, self.gguf, f"say what the name of one has, such as {self.name}:Q4_K_M")
        raise BuildError(
            f"{self.name} has neither weights in safetensors nor {MODEL} on the hub; choose a model that has one.",
            "not_a_checkpoint",
        )


def is_hub_name(text: str) -> bool:
    """Return whether `text` has the form `owner/name`, or `owner/name:quantization` for one of its GGUF files."""
    return _HUB_NAME.fullmatch(text) is not None


def find_hub_model(name: str, revision: str | None = None, include: Sequence[str] = CHECKPOINT_FILES) -> HubModel:
    """Ask the hub for the commit and the files of a model; an earlier download is used if it can't be reached.

    Raises BuildError: `checkpoint_not_found` (no such model or revision), `storage_denied` (a gated model, or a token
    that is refused), `storage_unreachable`.
    """
    hub = _library()
    match = _HUB_NAME.fullmatch(name)
    name, quantization = (match[2], match[3]) if match else (name, None)
    try:
        if hub.constants.HF_HUB_OFFLINE:
            raise hub.errors.OfflineModeIsEnabled
        info = hub.HfApi(endpoint=hub.constants.ENDPOINT).model_info(
            name, revision=revision, files_metadata=True, timeout=hub.constants.HF_HUB_ETAG_TIMEOUT
        )
    except (hub.errors.HTTPError, hub.errors.HFValidationError, OSError) as error:
        explained = _explain(hub, name, revision, error)
        downloaded = _downloaded(hub, name, revision) if explained.code.startswith("storage_") else None
        if downloaded is None:
            raise explained from error
        return HubModel(name, revision, downloaded.name, None, quantization=quantization)
    paths = {
        file.rfilename: file
        for file in info.siblings or ()
        if "/" not in file.rfilename or _MODULE_FILE.fullmatch(file.rfilename)
    }
    gguf = tuple(path for path in paths if path.lower().endswith(".gguf"))
    if quantization:
        include = [_choose_gguf(name, gguf, quantization)]
    excluded = list(_EXCLUDE)
    # A model for OpenVINO or CTranslate2 is taken as it is only if the original weights are not there.
    if any(path.endswith(".safetensors") for path in paths):
        excluded += [MODEL, "*.bin"]
    elif seq2seq_task(info.config or {}) is None:
        excluded.append(PICKLES)
    selected = hub.utils.filter_repo_objects(paths, allow_patterns=list(include), ignore_patterns=excluded)
    files = tuple(
        HubFile(path, file.lfs.sha256 if file.lfs else file.blob_id, file.size)
        for path in selected
        for file in (paths[path],)
    )
    return HubModel(name, revision, info.sha, files, gguf, quantization)


def _choose_gguf(name: str, files: Sequence[str], quantization: str) -> str:
    """Return the file whose name has `quantization` as a part.

    Raises BuildError (`checkpoint_not_found`) if there is none or several, (`not_a_checkpoint`) if it is split.
    """
    part = re.compile(rf"(?<![a-z0-9]){re.escape(quantization)}(?![a-z0-9_])", re.IGNORECASE)
    found = [file for file in files if part.search(file)]
    if split := [file for file in found if _SPLIT.search(file)]:
        raise BuildError(
            f"{quantization} of {name} is split into {len(split)} files, which can't be read; download them, join them"
            " with `llama-gguf-split --merge`, and name the file.",
            "not_a_checkpoint",
        )
    if len(found) == 1:
        return found[0]
    if not files:
        raise _not_found(f"{name} has no file in GGUF on the hub; leave :{quantization} out.")
    what = "several files" if found else "no file"
    raise _not_found(
        f"{name} has {what} with {quantization} in the name; write what only one has: {', '.join(sorted(files))}."
    )


def download(model: HubModel, progress: BuildProgress) -> Path:
    """Return the directory of the downloaded model, or its GGUF file; begun files are continued.

    Raises BuildError as `find_hub_model` does, and `disk_full` before a download that does not fit.
    """
    hub = _library()
    if model.files is None:
        if (there := _downloaded(hub, model.name, model.commit)) is None:
            raise _explain(hub, model.name, None, OSError())
        return _place(there, model)
    storage = Path(hub.constants.HF_HUB_CACHE) / f"models--{model.name.replace('/', '--')}"

    def done() -> int:
        return sum(_present(storage / "blobs", file) for file in model.files or ())

    total = model.total_bytes
    if total is None or done() < total:
        size = "" if total is None else f", {total / 1e6:,.0f} MB"
        plural = "s" if len(model.files) != 1 else ""
        progress.step(f"Downloading {model.name} from the hub: {len(model.files)} file{plural}{size}")
        _check_space(model.name, (total or 0) - done(), storage)
    before, fruitless = done(), 0
    while True:
        try:
            _fetch(hub, model, lambda: progress.advance(done(), total) if total else None)
            break
        except (hub.errors.HTTPError, OSError) as error:
            explained = _explain(hub, model.name, None, error, interrupted=True)
            # The library loses what it has not written yet, so an attempt may add nothing.
            fruitless = 0 if done() > before else fruitless + 1
            if explained.code != "storage_unreachable" or fruitless == _FRUITLESS_ATTEMPTS:
                raise explained from error
            before = done()
            time.sleep(_RETRY_SECONDS * fruitless)
    if (revision := model.revision or MAIN_BRANCH) != model.commit:
        # As the library does it, so that the revision is known while the hub can't be reached.
        (storage / "refs" / revision).parent.mkdir(parents=True, exist_ok=True)
        write_atomic(storage / "refs" / revision, model.commit)
    return _place(storage / "snapshots" / model.commit, model)


def _place(directory: Path, model: HubModel) -> Path:
    if not model.quantization:
        return directory
    name = model.name if model.files else f"The hub can't be reached, and the earlier download of {model.name}"
    return directory / _choose_gguf(name, gguf_files(directory), model.quantization)


def _fetch(hub: ModuleType, model: HubModel, on_progress: Callable[[], None]) -> None:
    """Download the files of a model, several at once; raise the first failure.

    In threads that end with the process: the library's own would keep it until the files are complete after Ctrl-C.
    """
    queue, failures = deque(model.files or ()), list[Exception]()

    def work() -> None:
        while not failures:
            try:
                file = queue.popleft()
            except IndexError:
                return
            try:
                hub.hf_hub_download(model.name, file.path, revision=model.commit, endpoint=hub.constants.ENDPOINT)
            except Exception as error:
                failures.append(error)

    threads = [threading.Thread(target=work, name="download", daemon=True) for _ in range(_CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(_POLL_SECONDS)
            on_progress()
    if failures:
        raise failures[0]


def _library() -> ModuleType:
    # Imported here, since a local checkpoint needs no network library.
    import huggingface_hub
    import huggingface_hub.errors
    import huggingface_hub.utils

    hub: ModuleType = huggingface_hub
    hub.utils.disable_progress_bars()
    hub.utils.logging.set_verbosity(hub.utils.logging.CRITICAL)
    return hub


def _downloaded(hub: ModuleType, name: str, revision: str | None) -> Path | None:
    try:
        return Path(hub.snapshot_download(name, revision=revision, local_files_only=True))
    except (hub.errors.LocalEntryNotFoundError, OSError):
        return None


def _present(blobs: Path, file: HubFile) -> int:
    """Return the bytes of a file that are on the disk."""
    for name in (file.blob, f"{file.blob}.incomplete"):
        try:
            return min((blobs / (name or "")).stat().st_size, file.size or 0)
        except OSError:
            continue
    return 0


def _check_space(name: str, needed: int, storage: Path) -> None:
    place = next(parent for parent in storage.parents if parent.is_dir())
    free = shutil.disk_usage(place).free
    if needed > free:
        raise BuildError(
            f"The download of {name} needs {needed / 1e9:.3g} GB and the disk of {place} has {free / 1e9:.3g} GB left;"
            " free space, or set HF_HOME to a directory on another disk.",
            "disk_full",
        )


def _explain(
    hub: ModuleType, name: str, revision: str | None, error: Exception, *, interrupted: bool = False
) -> BuildError:
    """Return a failure of the hub as one sentence with the next step."""
    errors, page = hub.errors, f"{hub.constants.ENDPOINT}/{name}"
    has_token = hub.get_token() is not None
    if isinstance(error, errors.GatedRepoError):
        then = "the account of your token has to be granted access" if has_token else "set HF_TOKEN to your token"
        return BuildError(
            f"{name} is gated: accept its licence at {page}; {then}, then run the command again.", "storage_denied"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return _not_found(f"{name} has no revision {revision}; see {page}/commits for those it has.")
    if isinstance(error, (errors.RepositoryNotFoundError, errors.DisabledRepoError)):
        private = "private for your token" if has_token else "private, which takes HF_TOKEN"
        return _not_found(
            f"There is no directory {name}, and the hub has no such model (or it is {private}); check the name."
        )
    if isinstance(error, errors.HFValidationError):
        return _not_found(f"There is no directory {name}, and no model of the hub can be called that; check the path.")
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return BuildError(
            f"The hub denies access to {name} (status {status}); check that HF_TOKEN is valid and may read it.",
            "storage_denied",
        )
    if isinstance(error, OSError) and error.errno in DISK_FULL_ERRORS:
        return BuildError(
            f"The disk filled up while {name} was downloaded; free space, or set HF_HOME to a directory on another"
            " disk, and run the command again, which continues the download.",
            "disk_full",
        )
    return BuildError(_unreachable(hub, name, status, interrupted), "storage_unreachable")


def _unreachable(hub: ModuleType, name: str, status: int | None, interrupted: bool) -> str:
    if hub.constants.HF_HUB_OFFLINE:
        other = os.environ.get("TRANSFORMERS_OFFLINE") and not os.environ.get("HF_HUB_OFFLINE")
        variable = "TRANSFORMERS_OFFLINE" if other else "HF_HUB_OFFLINE"
        return (
            f"There is no directory {name}, no earlier download of it, and {variable} forbids downloads; unset it, or"
            " copy a checkpoint to this machine and name its directory."
        )
    if interrupted:
        return (
            f"The connection to the hub was lost while {name} was downloaded; run the command again, which continues"
            " the download."
        )
    if status is not None:
        return f"The hub can't say what {name} is (status {status}); try again later."
    return (
        f"There is no directory {name}, and the Hugging Face hub can't be reached to look there; check the path or the"
        " network, or copy a checkpoint to this machine and name its directory."
    )


def _not_found(message: str) -> BuildError:
    return BuildError(message, "checkpoint_not_found")
