"""Enforces the quotas of API keys. The processes of a gateway share the counts in an SQLite file, which also keeps the
tokens of the day over a restart.

Tokens are reserved before a request starts: those of its prompt, estimated, and all that its answers may have. At the
end the reservation is replaced by what was used.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from inflight.common.sqlite import open_database, transaction
from inflight.gateway.key_file import ApiKey
from inflight.gateway.outcome import Outcome
from inflight.openai_api.errors import ApiError

logger = logging.getLogger("inflight.gateway")

_MINUTE, _DAY = 60.0, 86400.0
_BUSY_SECONDS = 5.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS windows (key TEXT, quota TEXT, start REAL, used INTEGER, PRIMARY KEY (key, quota));
CREATE TABLE IF NOT EXISTS running (key TEXT, process TEXT, requests INTEGER, PRIMARY KEY (key, process));
"""


@dataclass(frozen=True)
class Window:
    """A quota and how much of it is used since `start`."""

    quota: str
    limit: int
    seconds: float
    start: float
    used: int

    def left_seconds(self, now: float) -> float:
        return max(0.0, self.start + self.seconds - now)


@dataclass(frozen=True)
class Reservation:
    """What a request holds until it ends. `headers` are those of its response."""

    key: str
    tokens: int
    windows: tuple[Window, ...]
    headers: dict[str, str]


class KeyQuotas:
    """Holds the quotas of requests while they run. The file is opened with the first key that has quotas."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ledger: QuotaLedger | None = None

    @contextmanager
    def hold(
        self, key: ApiKey | None, prompt_tokens: int, answer_tokens: int, outcome: Outcome
    ) -> Iterator[dict[str, str]]:
        """Reserve the tokens that a request may use; at the end count what it has used. Yields headers of the response.

        Raises ApiError: 429, or 503 if the counts can't be kept.
        """
        if key is None or not key.quotas.as_dict():
            yield {}
            return
        try:
            self._ledger = self._ledger or QuotaLedger(self.path)
            reservation = self._ledger.reserve(key, prompt_tokens, answer_tokens)
        except (sqlite3.Error, OSError) as error:
            logger.error("The quotas of API keys can't be counted: %s", error)
            raise ApiError(
                "the quotas of this API key can't be counted; see the gateway's log",
                "internal_error",
                status=503,
                headers={"retry-after": "2"},
            ) from None
        failed = False
        try:
            yield reservation.headers
        except BaseException:
            failed = True
            raise
        finally:
            used = outcome.input_tokens + outcome.output_tokens
            cut = outcome.left or (failed and outcome.streamed > 0)
            if cut and outcome.sent:  # the server has computed the prompt, and what was streamed
                streamed = max(outcome.output_tokens, outcome.streamed)
                used = max(outcome.input_tokens, outcome.prompt_tokens or prompt_tokens) + min(streamed, answer_tokens)
            try:
                self._ledger.release(reservation, used if outcome.admitted else None)
            except sqlite3.Error as error:
                logger.error("A request stays counted as reserved: %s", error)

    def close(self) -> None:
        if self._ledger is not None:
            with suppress(sqlite3.Error):
                self._ledger.close()


class QuotaLedger:
    """Counts what each key uses. For one thread; the file may be used by many processes."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        """Open or create the file. Raises sqlite3.Error, OSError."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._clock = clock
        me = psutil.Process()
        self._process = f"{me.pid} {me.create_time()}"
        self._database = open_database(path, _SCHEMA, timeout=_BUSY_SECONDS, durable=False)

    def close(self) -> None:
        with transaction(self._database):
            self._database.execute("DELETE FROM running WHERE process = ?", (self._process,))
        self._database.close()

    def reserve(self, key: ApiKey, prompt_tokens: int, answer_tokens: int = 0) -> Reservation:
        """Count a request and reserve its tokens. Raises ApiError 429, and counts nothing then."""
        tokens = prompt_tokens + answer_tokens
        smaller = "shorten the prompt, or lower max_tokens" if answer_tokens else "shorten the texts, or send fewer"
        with transaction(self._database):
            now = self._clock()
            windows = self._windows(key, now)
            for window in windows:
                self._check(window, tokens, now, smaller)
            self._check_concurrency(key)
            taken = tuple(self._add(key, window, _amount(window, tokens)) for window in windows)
            if key.quotas.max_concurrent is not None:
                self._database.execute(
                    "INSERT INTO running VALUES (?, ?, 1) ON CONFLICT DO UPDATE SET requests = requests + 1",
                    (key.id, self._process),
                )
        return Reservation(key.id, tokens, taken, rate_headers(taken, now))

    def release(self, reservation: Reservation, tokens: int | None) -> None:
        """Replace the reserved tokens by those used; None: the request never started, so it is not counted either."""
        with transaction(self._database):
            for window in reservation.windows:
                reserved = _amount(window, reservation.tokens)
                used = 0 if tokens is None else _amount(window, tokens)
                self._database.execute(
                    "UPDATE windows SET used = max(0, used + ?) WHERE key = ? AND quota = ? AND start = ?",
                    (used - reserved, reservation.key, window.quota, window.start),
                )
            self._database.execute(
                "UPDATE running SET requests = max(0, requests - 1) WHERE key = ? AND process = ?",
                (reservation.key, self._process),
            )

    def _windows(self, key: ApiKey, now: float) -> list[Window]:
        quotas, windows = key.quotas, []
        rows = self._database.execute("SELECT quota, start, used FROM windows WHERE key = ?", (key.id,))
        stored = {quota: (start, used) for quota, start, used in rows}
        for quota, limit, seconds in (
            ("requests", quotas.requests_per_minute, _MINUTE),
            ("tokens", quotas.tokens_per_minute, _MINUTE),
            ("tokens_of_the_day", quotas.tokens_per_day, _DAY),
        ):
            if limit is None:
                continue
            start, used = stored.get(quota, (0.0, 0))
            if not start <= now < start + seconds:
                start, used = (now - now % _DAY if seconds == _DAY else now), 0
            windows.append(Window(quota, limit, seconds, start, used))
        return windows

    def _check(self, window: Window, tokens: int, now: float, smaller: str) -> None:
        amount = _amount(window, tokens)
        period = "minute" if window.seconds == _MINUTE else "day"
        what = "requests" if window.quota == "requests" else "tokens"
        headers = rate_headers((window,), now)
        if amount > window.limit:
            raise _refusal(
                f"the request may take {amount} tokens, and this API key has {window.limit} a {period}; {smaller}",
                {"x-should-retry": "false"},
            )
        if window.used + amount > window.limit:
            wait = window.left_seconds(now)
            raise _refusal(
                f"this API key may use {window.limit} {what} a {period}, and {window.used} are used or reserved; send"
                f" the request again in {max(1, round(wait))} s",
                headers | _retry_after(wait),
            )

    def _check_concurrency(self, key: ApiKey) -> None:
        most = key.quotas.max_concurrent
        if most is None:
            return
        if self._running(key) >= most:
            self._forget_ended_processes()
        if self._running(key) >= most:
            raise _refusal(
                f"this API key may have {most} requests at a time; wait until one has ended", _retry_after(1.0)
            )

    def _running(self, key: ApiKey) -> int:
        row = self._database.execute("SELECT sum(requests) FROM running WHERE key = ?", (key.id,)).fetchone()
        return row[0] or 0

    def _add(self, key: ApiKey, window: Window, amount: int) -> Window:
        used = window.used + amount
        self._database.execute(
            "INSERT OR REPLACE INTO windows VALUES (?, ?, ?, ?)", (key.id, window.quota, window.start, used)
        )
        return Window(window.quota, window.limit, window.seconds, window.start, used)

    def _forget_ended_processes(self) -> None:
        """A killed process of the gateway has no requests any more."""
        for (process,) in self._database.execute("SELECT DISTINCT process FROM running").fetchall():
            pid, _, created = process.partition(" ")
            try:
                alive = psutil.Process(int(pid)).create_time() == float(created)
            except psutil.Error:
                alive = False
            if not alive:
                self._database.execute("DELETE FROM running WHERE process = ?", (process,))


def rate_headers(windows: tuple[Window, ...], now: float) -> dict[str, str]:
    """Return OpenAI's headers of the quotas a minute."""
    headers = {}
    for window in windows:
        if window.seconds == _MINUTE:
            headers[f"x-ratelimit-limit-{window.quota}"] = str(window.limit)
            headers[f"x-ratelimit-remaining-{window.quota}"] = str(max(0, window.limit - window.used))
            headers[f"x-ratelimit-reset-{window.quota}"] = f"{window.left_seconds(now):.3f}s"
    return headers


def _amount(window: Window, tokens: int) -> int:
    return 1 if window.quota == "requests" else tokens


def _retry_after(seconds: float) -> dict[str, str]:
    milliseconds = max(1, -int(-seconds * 1000 // 1))
    return {"retry-after": str(-(-milliseconds // 1000)), "retry-after-ms": str(milliseconds)}


def _refusal(message: str, headers: Mapping[str, str]) -> ApiError:
    return ApiError(message, "rate_limit_exceeded", status=429, headers=headers)
