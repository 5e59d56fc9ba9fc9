"""One process's share of a run: the sessions whose numbers are its own."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator

import gevent
from gevent.event import Event
from gevent.pool import Group

from loadtests.arrivals.profile import Profile
from loadtests.arrivals.schedule import due_moments
from loadtests.ask import Ask, Session, Workload
from loadtests.connection import connect
from loadtests.generator.clock import RunClock
from loadtests.generator.sender import RunIsOver, Sender
from loadtests.plan import Plan
from loadtests.record import Record

_LOOK_SECONDS = 0.02
_ARMED_SECONDS = 0.25
"""How long before it is due a session's timer is set."""


class Share:
    """Sessions `index`, `index + count`, ... of a plan's, sent when they are due.

    In a closed loop users call `visit`, one after another; in an open loop one greenlet calls `follow_schedule`.
    Both wait for the run's beginning first. Raises InflightError where the server is not there.
    """

    def __init__(self, plan: Plan, workload: Workload, index: int, count: int, tell: Callable[[Record], None]) -> None:
        self.plan = plan
        self._index, self._count = index, count
        self._workload = workload
        self._numbers = itertools.count(index, count)
        self._profile = Profile.parse(plan.arrivals.profile)
        self._waits = len(self._profile.changes) > 1 or not self._profile.users(0.0)
        self._client = connect(plan)
        try:
            self.deployment = self._client.deployment()
        except BaseException:
            self._client.close()
            raise
        self._tell_on = tell
        self._sending: set[gevent.Greenlet] = set()
        self._visits = 0
        self.exhausted = False
        """Whether there are no more sessions to begin."""
        self._begun = Event()
        self._stopped = Event()
        self._followed = Event()
        self._users = itertools.count(index, count)
        self.outcomes: Counter[str] = Counter()
        self.sent = 0

    def begin(self, seconds_ahead: float) -> RunClock:
        """Set the run's start; nothing is due before it."""
        self.clock = RunClock(seconds_ahead)
        self._sender = Sender(self._client, self.plan, self.clock, self._index, self._tell)
        self._begun.set()
        return self.clock

    @property
    def open(self) -> int:
        """How many requests are on their way."""
        return len(self._sending)

    @property
    def over(self) -> bool:
        """Whether nothing new is sent any more."""
        return self._stopped.is_set() or self.clock.now() >= self.plan.end

    def stop(self) -> None:
        """Send nothing new from now on."""
        self._stopped.set()

    def add_user(self) -> int:
        """The number of one more user of a closed loop, counted over all processes."""
        return next(self._users)

    def visit(self, user: int) -> bool:
        """A user's next session, from its first turn to its last; false where there is none to begin any more.

        A user waits for its first one while the profile has fewer users than its number, and after it likewise.
        """
        self._begun.wait()
        self._wait_for_place(user)
        if self.over:
            return False
        session = self._session(next(self._numbers))
        if session is None:
            self.exhausted = True
            return False
        self._visits += 1
        self._visit(session, self.clock.now())
        if self.plan.arrivals.pause:
            gevent.sleep(self.plan.arrivals.pause)
        return True

    def _wait_for_place(self, user: int) -> None:
        self.clock.sleep_until(0.0)
        while not self.over and self._waits and user >= self._profile.users(self.clock.now()):
            changes = self._profile.changes
            at = bisect_right(changes, self.clock.now())
            self.clock.sleep_until(min(changes[at] if at < len(changes) else self.plan.end, self.plan.end))

    def follow_schedule(self) -> None:
        """Begin each session of an open loop when it is due, whatever became of those before; then wait for them."""
        visits = Group()
        try:
            for session, due in self._schedule():
                if self._stopped.wait(max(0.0, due - _ARMED_SECONDS - self.clock.now())):
                    break
                self._visits += 1
                visits.add(self.clock.start_at(due, self._visit, session, due))
            else:
                self.exhausted = True
            visits.join()
        finally:
            visits.kill()
            self._followed.set()

    def wait_for_schedule(self) -> None:
        """Until all that an open loop began has ended."""
        self._followed.wait()

    def finish(self) -> None:
        """Wait for the end of the run, and for what is on its way as long as the plan grants; then end it.

        What was due before the end, and could not be sent in time, is sent late, in the time that is granted.
        """
        while not self.over and not (self.exhausted and not self._visits):
            gevent.sleep(_LOOK_SECONDS)
        last = self.clock.now() + self.plan.grace
        while (self._sending or self._is_behind) and self.clock.now() < last:
            gevent.sleep(_LOOK_SECONDS)
        self.stop()
        for greenlet in list(self._sending):
            greenlet.kill(RunIsOver, block=False)
        while self._sending:
            gevent.sleep(_LOOK_SECONDS)

    @property
    def _is_behind(self) -> bool:
        """An open loop has sessions that were due and have not begun."""
        open_loop = self.plan.arrivals.kind != "users"
        return open_loop and not self.exhausted and not self._stopped.is_set()

    def close(self) -> None:
        self._client.close()

    def _schedule(self) -> Iterator[tuple[Session, float]]:
        """The sessions that are this process's, in order of when they are due."""
        arrivals = self.plan.arrivals
        if arrivals.kind == "trace":
            for number in self._numbers:
                session = self._session(number)
                if session is None or (due := (session.due or 0.0) / arrivals.speed) >= self.plan.end:
                    return
                yield session, due
            return
        for number, due in enumerate(due_moments(arrivals, self.plan.seed, self.plan.end)):
            if number % self._count != self._index:
                continue
            if (session := self._session(number)) is None:
                return
            yield session, due

    def _session(self, number: int) -> Session | None:
        if self.plan.sessions is not None and number >= self.plan.sessions:
            return None
        return self._workload.session(number)

    def _visit(self, session: Session, due: float) -> None:
        """All turns of a session that `_visits` counts; one without a whole answer ends it: the next would need it."""
        try:
            if self._stopped.is_set():
                return
            asks = session.asks()
            ask = next(asks, None)
            for turn in itertools.count():
                if ask is None:
                    return
                if turn:
                    due = self.clock.now() + ask.think
                    if due >= self.plan.end or self._stopped.is_set():
                        return
                    self.clock.sleep_until(due)
                text = self._send(ask, session.number, turn, due)
                if text is None:
                    return
                try:
                    ask = asks.send(text)
                except StopIteration:
                    return
        finally:
            self._visits -= 1

    def _tell(self, record: Record) -> None:
        self.outcomes[record.outcome.value] += 1
        self._tell_on(record)

    def _send(self, ask: Ask, session: int, turn: int, due: float) -> str | None:
        greenlet = gevent.getcurrent()
        self._sending.add(greenlet)
        self.sent += 1
        try:
            return self._sender.send(ask, session, turn, due)
        finally:
            self._sending.discard(greenlet)
