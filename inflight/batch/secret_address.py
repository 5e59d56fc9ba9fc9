"""Addresses with a secret in them: it stands in the environment, and is put in when the address is used.

`postgresql://app:${PGPASSWORD}@db/shop` is what a job's files and messages hold. A password that was typed into an
address is told to its owner, and shown to nobody.
"""

from __future__ import annotations

import os
import re
from urllib.parse import quote

from inflight.batch.errors import BatchError

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_IN_USER = re.compile(r"(?<=://)([^/?#@:]*):([^/?#]*)@")
_IN_QUERY = re.compile(r"(?i)(?<=[?&])([a-z_-]*(?:password|passwd|secret|token|key|signature)[a-z_-]*)=([^&#]+)")
_HIDDEN = "***"


def expanded(address: str, code: str) -> str:
    """The address with `${NAME}` replaced by the environment's values; those of user and password may hold any sign.

    Raises BatchError of that code where a variable is not set.
    """

    def value(found: re.Match[str]) -> str:
        said = os.environ.get(found[1])
        if said is None:
            raise BatchError(
                f"the address {masked(address)} names the variable {found[1]}, which is not set; export it", code
            )
        in_user = "://" in address[: found.start()] and "@" in address[found.end() :]
        return quote(said, safe="") if in_user else said

    return _VARIABLE.sub(value, address)


def masked(address: str) -> str:
    """The address for messages: a password is hidden, the name of its variable is not."""
    address = _IN_USER.sub(lambda found: f"{found[1]}:{_shown(found[2])}@", address)
    return _IN_QUERY.sub(lambda found: f"{found[1]}={_shown(found[2])}", address)


def warning(address: str) -> str | None:
    """What to tell somebody who typed a password into an address; None where there is none."""
    if masked(address) == address:
        return None
    return (
        f"the address {masked(address)} holds a password, which the job's files keep; write ${{NAME}} in its place, and"
        " export NAME"
    )


def _shown(secret: str) -> str:
    return secret if not secret or _VARIABLE.fullmatch(secret) else _HIDDEN
