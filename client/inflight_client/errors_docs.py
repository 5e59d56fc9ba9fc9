"""The table of error codes as a page of the documentation: `python -m inflight_client.errors_docs > docs/errors.md`."""

from __future__ import annotations

from inflight_client.errors import ERROR_CODES, InflightError

_HEAD = """\
# Error codes

Every error of `inflight` is one sentence with a stable code in brackets at its end: on the command line, in the
server's answers, and in the client's exceptions (`error.code`, `error.remedy`, `error.retry`). This page is generated
from [client/inflight_client/errors.py](../client/inflight_client/errors.py).

"Retry" marks errors after which the same call may succeed later. The client retries such calls automatically as long
as no token has arrived ([how](client.md#deadlines-and-retries)).

## Calls

Each code is raised as its class; all classes are subclasses of `InflightError`.

| code | class | meaning | what to do | retry |
|---|---|---|---|---|
"""

_BUILD_HEAD = """
## Commands

Commands print these and exit with 1.

| code | meaning | what to do | retry |
|---|---|---|---|
"""


def render() -> str:
    """Return the whole page as Markdown."""
    calls, building = [], []
    for code, (meaning, remedy, kind, retry) in ERROR_CODES.items():
        again = "yes" if retry else ""
        if kind is InflightError:
            building.append(f"| `{code}` | {meaning} | {remedy} | {again} |\n")
        else:
            calls.append(f"| `{code}` | `{kind.__name__}` | {meaning} | {remedy} | {again} |\n")
    return _HEAD + "".join(calls) + _BUILD_HEAD + "".join(building)


if __name__ == "__main__":
    print(render(), end="")
