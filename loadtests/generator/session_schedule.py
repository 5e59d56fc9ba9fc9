"""One process's shard of a run: the sessions with its numbers."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator

import gevent
from gevent.event import Event
from gevent.pool import Group

from loadtests.arrivals.profile import Profile
from loadtests.arrivals.schedule import due_times
from loadtests.connection import connect, find_model
from loadtests.generator.request_sender import RequestSender, RunClock, RunEnded
from loadtests.plan import LoadPlan
from loadtests.record import RequestRecord
from loadtests.workloads.interface import AnyRequest, Session, Workload

_POLL_SECONDS = 0.02
_TIMER_LEAD_SECONDS = 0.25
"""How long before its due time a session's timer is set."""


class SessionShard:
    """Sends sessions `index`, `index + count`, ... of a plan when they are due.

    In a closed loop, users call `run_session` repeatedly; in an open loop, one greenlet calls `run_schedule`. Both wait
    for the run's start first. Raises InflightError if the server is unreachable.
    """

    def __init__(
        self, plan: LoadPlan, workload: Workload, index: int, count: int, on_record: Callable[[RequestRecord], None]
    ) -> None:
        self.plan = plan
        self._index, self._count = index, count
        self._workload = workload
        self._numbers = itertools.count(index, count)
        self._profile = Profile.parse(plan.arrivals.profile)
        self._has_user_steps = len(self._profile.changes) > 1 or not self._profile.users(0.0)
        self._client = connect(plan)
        try:
            self.model = find_model(plan, self._client)
        except BaseException:
            self._client.close()
            raise
        self._on_record = on_record
        self._in_flight: set[gevent.Greenlet] = set()
        self._active_sessions = 0
        self.exhausted = False
        """Whether there are no more sessions to start."""
        self._started = Event()
        self._stopped = Event()
        self._schedule_done = Event()
        self._users = itertools.count(index, count)
        self.outcomes: Counter[str] = Counter()
        self.sent = 0

    def start(self, seconds_ahead: float) -> RunClock:
        """Set the run's start; nothing is due before it."""
        self.clock = RunClock(seconds_ahead)
        self._sender = RequestSender(self._client, self.plan, self.clock, self._index, self._add_record)
        self._started.set()
        return self.clock

    @property
    def in_flight(self) -> int:
        """The number of open requests."""
        return len(self._in_flight)

    @property
    def is_finished(self) -> bool:
        """Whether no new request is sent any more."""
        return self._stopped.is_set() or self.clock.now() >= self.plan.end

    def stop(self) -> None:
        """Send no new requests from now on."""
        self._stopped.set()

    def add_user(self) -> int:
        """Return the number of one more user of a closed loop, counted over all processes."""
        return next(self._users)

    def run_session(self, user: int) -> bool:
        """Run a user's next session, from its first turn to its last; return False if there is none left.

        A user waits before each session while the profile has fewer users than its number.
        """
        self._started.wait()
        due = self._wait_for_user_slot(user)
        if self.is_finished:
            return False
        session = self._session(next(self._numbers))
        if session is None:
            self.exhausted = True
            return False
        self._active_sessions += 1
        self._run_turns(session, due)
        if self.plan.arrivals.pause:
            gevent.sleep(self.plan.arrivals.pause)
        return True

    def _wait_for_user_slot(self, user: int) -> float:
        """Return the moment, in seconds, at which the profile had a place for this user: its session is due then."""
        self.clock.sleep_until(0.0)
        now = self.clock.now()
        while not self.is_finished and self._has_user_steps and user >= self._profile.users(now):
            changes = self._profile.changes
            at = bisect_right(changes, now)
            self.clock.sleep_until(min(changes[at] if at < len(changes) else self.plan.end, self.plan.end))
            now = self.clock.now()
        return now

    def run_schedule(self) -> None:
        """Start each session of an open loop when it is due, whatever happened to those before; then wait for them."""
        visits = Group()
        try:
            for session, due in self._schedule():
                if self._stopped.wait(max(0.0, due - _TIMER_LEAD_SECONDS - self.clock.now())):
                    break
                self._active_sessions += 1
                visits.add(self.clock.start_at(due, self._run_turns, session, due))
            else:
                self.exhausted = True
            visits.join()
        finally:
            visits.kill()
            self._schedule_done.set()

    def wait_for_schedule(self) -> None:
        """Wait until all sessions of an open loop have ended."""
        self._schedule_done.wait()

    def finish(self) -> None:
        """Wait for the end of the run, drain the open requests for as long as the plan allows, then end them.

        Requests that were due before the end but could not be sent in time are sent late, during the drain.
        """
        while not self.is_finished and not (self.exhausted and not self._active_sessions):
            gevent.sleep(_POLL_SECONDS)
        last = self.clock.now() + self.plan.drain_seconds
        while (self._in_flight or self._is_behind) and self.clock.now() < last:
            gevent.sleep(_POLL_SECONDS)
        self.stop()
        for greenlet in list(self._in_flight):
            greenlet.kill(RunEnded, block=False)
        while self._in_flight:
            gevent.sleep(_POLL_SECONDS)

    @property
    def _is_behind(self) -> bool:
        """Whether an open loop has sessions that were due and have not started."""
        open_loop = self.plan.arrivals.kind != "users"
        return open_loop and not self.exhausted and not self._stopped.is_set()

    def close(self) -> None:
        self._client.close()

    def _schedule(self) -> Iterator[tuple[Session, float]]:
        """Yield this process's sessions in order of due time."""
        arrivals = self.plan.arrivals
        if arrivals.kind == "trace":
            for number in self._numbers:
                session = self._session(number)
                if session is None or (due := (session.due or 0.0) / arrivals.speed) >= self.plan.end:
                    return
                yield session, due
            return
        for number, due in enumerate(due_times(arrivals, self.plan.seed, self.plan.end)):
            if number % self._count != self._index:
                continue
            if (session := self._session(number)) is None:
                return
            yield session, due

    def _session(self, number: int) -> Session | None:
        if self.plan.sessions is not None and number >= self.plan.sessions:
            return None
        return self._workload.session(number)

    def _run_turns(self, session: Session, due: float) -> None:
        """Run all turns of a session that `_active_sessions` counts. An incomplete answer ends it, since the next turn
        needs the answer.
        """
        try:
            if self._stopped.is_set():
                return
            requests = session.requests()
            request = next(requests, None)
            for turn in itertools.count():
                if request is None:
                    return
                if turn:
                    due = self.clock.now() + request.think_time
                    if due >= self.plan.end or self._stopped.is_set():
                        return
                    self.clock.sleep_until(due)
                text = self._send_request(request, session.number, turn, due)
                if text is None:
                    return
                try:
                    request = requests.send(text)
                except StopIteration:
                    return
        finally:
            self._active_sessions -= 1

    def _add_record(self, record: RequestRecord) -> None:
        self.outcomes[record.outcome.value] += 1
        self._on_record(record)

    def _send_request(self, request: AnyRequest, session: int, turn: int, due: float) -> str | None:
        greenlet = gevent.getcurrent()
        self._in_flight.add(greenlet)
        self.sent += 1
        try:
            return self._sender.send(request, session, turn, due)
        finally:
            self._in_flight.discard(greenlet)
