"""The table of error codes as a page of the documentation: `python -m inflight_client.errors_docs > docs/errors.md`."""

from __future__ import annotations

from inflight_client.errors import ERROR_CODES, InflightError

_HEAD = """\
# Error codes

Whatever goes wrong in `inflight` is said in one sentence with a stable code in brackets at its end: on the command
line, in the server's answers, in the client's exceptions (`error.code`, `error.remedy`, `error.retry`). There is one
table of them, [client/inflight_client/errors.py](../client/inflight_client/errors.py), from which this page is written
(`python -m inflight_client.errors_docs`).

"Again" says whether the same call may succeed a little later; such calls the client sends again by itself, as long as
no token has come ([how](client.md#deadlines-and-retries)).

## Of a call

Each code is raised as the class beside it; all are an `InflightError`.

| code | class | meaning | what to do | again |
|---|---|---|---|---|
"""

_BUILD_HEAD = """
## Of building and serving

The commands say these, and exit with 1.

| code | meaning | what to do | again |
|---|---|---|---|
"""


def render() -> str:
    """The whole page, as Markdown."""
    calls, building = [], []
    for code, (meaning, remedy, retry) in ERROR_CODES.items():
        kind = type(InflightError("", code))
        again = "yes" if retry else ""
        if kind is InflightError:
            building.append(f"| `{code}` | {meaning} | {remedy} | {again} |\n")
        else:
            calls.append(f"| `{code}` | `{kind.__name__}` | {meaning} | {remedy} | {again} |\n")
    return _HEAD + "".join(calls) + _BUILD_HEAD + "".join(building)


if __name__ == "__main__":
    print(render(), end="")
