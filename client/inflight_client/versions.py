"""Checks that the versions of client and server are compatible."""

from __future__ import annotations

import asyncio
import os
import sys
import warnings

_SKIPPED_DIRECTORIES = tuple(os.path.dirname(module) + os.sep for module in (__file__, asyncio.__file__))


class VersionWarning(UserWarning):
    """The server was deployed by a version of inflight that is incompatible with the client's: some calls may fail.

    Applications filter it like any other warning:

    >>> import warnings
    >>> warnings.simplefilter("error", VersionWarning)
    """


def client_version() -> str:
    """Return the version of inflight that this client belongs to.

    >>> client_version().count(".")
    2
    """
    from inflight import __version__  # the only import of inflight, and late, since the client works without it

    return __version__


def version_mismatch(server: str | None) -> str:
    """Return a sentence if the server's version is incompatible; empty if it is compatible or unknown.

    >>> version_mismatch(client_version()), version_mismatch(None)
    ('', '')
    """
    from inflight import compatible

    client = client_version()
    if not server or compatible(server, client):
        return ""
    return (
        f"the server was deployed by inflight {server}, which this client of {client} may not support; install the"
        " server's version, or deploy it again with the client's"
    )


def warn_if_incompatible(server: str | None) -> None:
    """Emit a VersionWarning at the caller's line if the server's version is incompatible."""
    sentence = version_mismatch(server)
    if sentence:
        warnings.warn(sentence, VersionWarning, stacklevel=_caller_stacklevel())


def _caller_stacklevel() -> int:
    """Return the stack level of the first frame outside this package and asyncio."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_SKIPPED_DIRECTORIES):
        frame, level = frame.f_back, level + 1
    return level
