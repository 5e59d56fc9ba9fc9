"""Whether client and server are of versions that fit."""

from __future__ import annotations

import asyncio
import os
import sys
import warnings

_SKIPPED_DIRECTORIES = tuple(os.path.dirname(module) + os.sep for module in (__file__, asyncio.__file__))


class VersionWarning(UserWarning):
    """The server was deployed by a version of inflight that doesn't fit the client's: some calls may fail.

    An application that wants to hear of it in its own way filters it as any warning:

    >>> import warnings
    >>> warnings.simplefilter("error", VersionWarning)
    """


def client_version() -> str:
    """The version of inflight that this client is part of.

    >>> client_version().count(".")
    2
    """
    from inflight import __version__  # its only import of ours, and only now: the client itself needs none

    return __version__


def version_mismatch(server: str | None) -> str:
    """In a sentence that the server's version doesn't fit; empty where it does, or where the server names none.

    >>> version_mismatch(client_version()), version_mismatch(None)
    ('', '')
    """
    from inflight import compatible

    client = client_version()
    if not server or compatible(server, client):
        return ""
    return (
        f"the server was deployed by inflight {server}, and this client is of {client}, which may not fit;"
        " install the server's version, or deploy it again with the client's"
    )


def warn_if_incompatible(server: str | None) -> None:
    """Warn (VersionWarning) of a server whose version doesn't fit, as of the caller's own line."""
    sentence = version_mismatch(server)
    if sentence:
        warnings.warn(sentence, VersionWarning, stacklevel=_caller_stacklevel())


def _caller_stacklevel() -> int:
    """How many frames up the first one stands that is neither of this package nor of asyncio."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_SKIPPED_DIRECTORIES):
        frame, level = frame.f_back, level + 1
    return level
