"""Whether client and server are of versions that fit."""

from __future__ import annotations

import warnings


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


def mismatch(server: str | None) -> str:
    """In a sentence that the server's version doesn't fit; empty where it does, or where the server names none.

    >>> mismatch(client_version()), mismatch(None)
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


def warn_unless_fitting(server: str | None) -> None:
    """Warn (VersionWarning) of a server whose version doesn't fit; a client does this once."""
    sentence = mismatch(server)
    if sentence:
        warnings.warn(sentence, VersionWarning, stacklevel=4)
