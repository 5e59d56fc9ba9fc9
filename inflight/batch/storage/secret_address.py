"""Addresses with secrets: these are in environment variables, and are inserted when the address is used.

`postgresql://app:${PGPASSWORD}@db/shop` is what a job's files and messages contain. If a password is part of the
address itself, its owner is warned, and messages hide it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from urllib.parse import quote, quote_plus, unquote

from inflight.batch.errors import BatchError
from inflight.batch.storage.addresses import is_database

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
# As in RFC 3986, and as SQLAlchemy parses it: any character up to an @.
_IN_USER = re.compile(r"(?<=://)([^/?#@:]*):([^/?#]*)@")
_IN_USER_OF_DATABASE = re.compile(r"(?<=://)([^:/@]*):([^@]*(?:@[^?]*)?)@", re.DOTALL)
# A token of NATS, as a user without a password.
_TOKEN = re.compile(r"(?:(?<=^nats://)|(?<=^tls://))([^/?#@:]+)(?=@)")
# A password in an invalid address: a port would be a number.
_MEANT_IN_USER = re.compile(r"(?<=://)([^/?#@:]*):(?!\d*(?:[/?#]|$))([^@]*(?:@[^?]*)?)@", re.DOTALL)
_IN_QUERY = re.compile(
    r"(?i)(?<=[?&;])([\w.-]*(?:pass|pwd|secret|token|key|signature|credential|odbc_connect|bearer|jwt"
    r"|(?<![a-z])sig(?![a-z])|auth(?!or[s=]))[\w.-]*)=([^&]+)"
)
_QUERY_IN_WORDS = re.compile(r"(://[^\s?'\"]*)\?[^\s'\"]*")
_HIDDEN = "***"


def expand_variables(address: str, code: str) -> str:
    """Replace `${NAME}` in the address with the environment's values; user and password may contain any character.

    Raises BatchError with this code if a variable is not set.
    """

    def value(variable: re.Match[str]) -> str:
        content = os.environ.get(variable[1])
        if content is None:
            raise BatchError(
                f"the address {masked(address)} names the variable {variable[1]}, which is not set; export it", code
            )
        in_user = "://" in address[: variable.start()] and "@" in address[variable.end() :]
        return quote(content, safe="") if in_user else content

    return _VARIABLE.sub(value, address)


def masked(address: str) -> str:
    """Return the address for messages: passwords are hidden, names of variables are not."""
    kinds = (_IN_USER_OF_DATABASE,) if is_database(address) else (_IN_USER, _MEANT_IN_USER)
    for kind in kinds:
        address, times = kind.subn(lambda match: f"{match[1]}:{_shown(match[2])}@", address)
        if times:
            break
    address = _TOKEN.sub(lambda match: _shown(match[1]), address)
    return _IN_QUERY.sub(lambda match: f"{match[1]}={_shown(match[2])}", address)


def scrubbed(words: object, address: str) -> str:
    """Return a library's error about an address, on one line, without secrets that it may repeat.

    Values of variables become their names again. The query of any address in the text is removed, since libraries
    format it in various ways.
    """
    text = " ".join(str(words).split())
    for secret, shown in sorted(_secrets(address), key=lambda pair: -len(pair[0])):
        text = text.replace(secret, shown)
    return _IN_USER.sub(f"{_HIDDEN}@", _QUERY_IN_WORDS.sub(rf"\1?{_HIDDEN}", text))


def password_warning(address: str) -> str | None:
    """Return a warning if the address contains a password, else None."""
    if masked(address) == address:
        return None
    return (
        f"the address {masked(address)} contains a password, which would be stored in the job's files and their copy "
        "beside an output in object storage; write ${NAME} instead and export NAME"
    )


def _secrets(address: str) -> Iterator[tuple[str, str]]:
    """Yield all secrets of an address in every form in which they may appear, with their replacements."""
    secrets = [(os.environ.get(name, ""), f"${{{name}}}") for name in _VARIABLE.findall(address)]
    for kind in (_IN_USER_OF_DATABASE if is_database(address) else _IN_USER, _IN_QUERY):
        secrets += [(secret, _HIDDEN) for _, secret in kind.findall(address) if _shown(secret) == _HIDDEN]
    secrets += [(secret, _HIDDEN) for secret in _TOKEN.findall(address) if _shown(secret) == _HIDDEN]
    for secret, shown in secrets:
        for written in {secret, unquote(secret), quote(secret), quote(secret, safe=""), quote_plus(secret)}:
            if len(written) > 2:  # shorter ones would match in any word
                yield written, shown


def _shown(secret: str) -> str:
    return secret if not secret or _VARIABLE.fullmatch(secret) else _HIDDEN
