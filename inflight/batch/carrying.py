"""A job's state on its way to the storage that its output goes to, while the job runs; nothing for other outputs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from inflight.batch import carry
from inflight.batch.carry import Carrier, carried_to
from inflight.batch.errors import BatchError
from inflight.batch.job import OutputSpec
from inflight.batch.job_directory import JobDirectory
from inflight.batch.secret_address import masked
from inflight.batch.state.ledger import Ledger

_STORAGE = ("storage_unreachable", "storage_denied", "storage_not_found")


class Carrying:
    """A storage that is away for a while costs what another machine could have known, not the job."""

    def __init__(self, output: OutputSpec, directory: JobDirectory, say: Callable[[str], None]) -> None:
        address = carried_to(output)
        self._carrier = None if address is None else Carrier(address, directory)
        self._shown, self._say = masked(address or ""), say
        self._away = False
        self._over = threading.Event()
        self._lost: BatchError | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Around the job while it is open: bring here what another machine has left, and however this one ends, let
        the next one have it. Raises BatchError as Carrier does.
        """
        if self._carrier is None:
            yield
            return
        renewing = threading.Thread(target=self._renew, args=(self._carrier,), name="batch-lease", daemon=True)
        try:
            renewing.start()  # it does nothing before the job is this machine's
            try:
                if self._carrier.fetch():
                    self._say(f"The job's state was fetched from {self._shown}.")
                yield
            finally:
                self._over.set()
                renewing.join()
        finally:
            if not self._away:
                with suppress(BatchError):  # then the next one waits
                    self._carrier.release()

    def begin(self, ledger: Ledger) -> None:
        """Say that this machine is at work, so that another one that begins learns of it. Raises BatchError."""
        if self._carrier is not None:
            try:
                self._carrier.send(ledger.snapshot)
            except BatchError as error:
                self._away = error.code in _STORAGE
                raise

    def go_on(self, ledger: Ledger) -> None:
        """Behind a checkpoint, in its thread.

        Raises BatchError `job_elsewhere` where another machine has taken the job over.
        """
        if self._lost is not None:
            raise self._lost
        if self._carrier is not None and self._carrier.due:
            self._send(self._carrier, ledger, last=False)

    def keep(self, ledger: Ledger) -> None:
        """Before the output is made, which may take long: all rows are done, and none need be asked again."""
        if self._carrier is not None:
            self._send(self._carrier, ledger, last=False)

    def end(self, ledger: Ledger) -> None:
        """This machine stops here, with all that it has done."""
        if self._carrier is not None:
            self._send(self._carrier, ledger, last=True)

    def _renew(self, carrier: Carrier) -> None:
        """In a thread of its own: a state that takes long to fetch or send, or an output, must not cost the lease."""
        while not self._over.wait(carry.RENEW_SECONDS):
            try:
                carrier.renew()
            except BatchError as error:
                if error.code == "job_elsewhere":
                    self._lost = error
                    return

    def _send(self, carrier: Carrier, ledger: Ledger, last: bool) -> None:
        try:
            carrier.send(ledger.snapshot, last)
            self._away = False
        except BatchError as error:
            if error.code not in _STORAGE:
                raise
            if not self._away or last:
                self._say(f"The job's state can't be saved to {self._shown} now: {error}")
            self._away = True
