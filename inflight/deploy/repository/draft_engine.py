"""Checks the draft engine of speculative decoding before a server starts with it."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from build_engines.manifest import Manifest, verify
from inflight.deploy.errors import DeployError

_TOKENIZER = "tokenizer.json"


def verify_draft_engine(draft: Path, engine: Path, manifest: Manifest) -> Manifest:
    """Verify the directory `draft` and that it has the vocabulary of `engine`; return the draft's manifest.

    Raises BuildError as `verify` does, and DeployError `invalid_parameter` if a token id has different meanings in the
    two engines: every draft token would be rejected, or crash the target model.
    """
    found = verify(draft)
    if found.vocab_size != manifest.vocab_size:
        raise _mismatch(
            draft, f"has a vocabulary of {found.vocab_size:,} tokens and the engine one of {manifest.vocab_size:,}"
        )
    if not _same_vocabulary(draft, found, engine, manifest):
        raise _mismatch(draft, "has another tokenizer than the engine")
    return found


def _same_vocabulary(draft: Path, of_draft: Manifest, engine: Path, of_engine: Manifest) -> bool:
    if of_draft.files[_TOKENIZER].sha256 == of_engine.files[_TOKENIZER].sha256:
        return True
    # The same vocabulary may be in a file with another template or padding rules.
    return _vocabulary(draft) == _vocabulary(engine)


def _vocabulary(directory: Path) -> dict[str, int]:
    vocabulary: dict[str, int] = Tokenizer.from_file(str(directory / _TOKENIZER)).get_vocab(with_added_tokens=True)
    return vocabulary


def _mismatch(draft: Path, what: str) -> DeployError:
    return DeployError(
        f"The draft engine {draft} {what}; use one built from a smaller model of the same family.",
        "invalid_parameter",
    )
