"""Addresses with a secret in them: it stands in the environment, and is put in when the address is used.

`postgresql://app:${PGPASSWORD}@db/shop` is what a job's files and messages hold. A password that was typed into an
address is told to its owner, and shown to nobody.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from urllib.parse import quote, quote_plus, unquote

from inflight.batch.errors import BatchError
from inflight.batch.storage.addresses import is_database

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
# As RFC 3986 has it, and as SQLAlchemy takes it: any sign, up to an @.
_IN_USER = re.compile(r"(?<=://)([^/?#@:]*):([^/?#]*)@")
_IN_USER_OF_DATABASE = re.compile(r"(?<=://)([^:/@]*):([^@]*(?:@[^?]*)?)@", re.DOTALL)
# What was meant so, and is no address: a port is a number.
_MEANT_IN_USER = re.compile(r"(?<=://)([^/?#@:]*):(?!\d*(?:[/?#]|$))([^@]*(?:@[^?]*)?)@", re.DOTALL)
_IN_QUERY = re.compile(
    r"(?i)(?<=[?&;])([\w.-]*(?:pass|pwd|secret|token|key|signature|credential|odbc_connect|bearer|jwt"
    r"|(?<![a-z])sig(?![a-z])|auth(?!or[s=]))[\w.-]*)=([^&]+)"
)
_QUERY_IN_WORDS = re.compile(r"(://[^\s?'\"]*)\?[^\s'\"]*")
_HIDDEN = "***"


def expand_variables(address: str, code: str) -> str:
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
    kinds = (_IN_USER_OF_DATABASE,) if is_database(address) else (_IN_USER, _MEANT_IN_USER)
    for kind in kinds:
        address, times = kind.subn(lambda found: f"{found[1]}:{_shown(found[2])}@", address)
        if times:
            break
    return _IN_QUERY.sub(lambda found: f"{found[1]}={_shown(found[2])}", address)


def scrubbed(words: object, address: str) -> str:
    """What a library says of an address, on one line, without the secrets that it may repeat.

    Values of variables become the names of these again; of any address in the words the query is left out, since
    libraries write it in ways of their own.
    """
    text = " ".join(str(words).split())
    for secret, shown in sorted(_secrets(address), key=lambda one: -len(one[0])):
        text = text.replace(secret, shown)
    return _IN_USER.sub(f"{_HIDDEN}@", _QUERY_IN_WORDS.sub(rf"\1?{_HIDDEN}", text))


def password_warning(address: str) -> str | None:
    """What to tell somebody who typed a password into an address; None where there is none."""
    if masked(address) == address:
        return None
    return (
        f"the address {masked(address)} holds a password, which the job's files keep, and their copy beside an output"
        " on a storage; write ${NAME} in its place, and export NAME"
    )


def _secrets(address: str) -> Iterator[tuple[str, str]]:
    """All that must not be shown of an address, in the ways in which it may be written, each with what is shown."""
    found = [(os.environ.get(name, ""), f"${{{name}}}") for name in _VARIABLE.findall(address)]
    for kind in (_IN_USER_OF_DATABASE if is_database(address) else _IN_USER, _IN_QUERY):
        found += [(secret, _HIDDEN) for _, secret in kind.findall(address) if _shown(secret) == _HIDDEN]
    for secret, shown in found:
        for written in {secret, unquote(secret), quote(secret), quote(secret, safe=""), quote_plus(secret)}:
            if len(written) > 2:  # shorter ones would be met in any word
                yield written, shown


def _shown(secret: str) -> str:
    return secret if not secret or _VARIABLE.fullmatch(secret) else _HIDDEN
