"""Uploads a job's state while it runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from inflight.batch.errors import BatchError
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.spec import OutputSpec
from inflight.batch.state import remote_state
from inflight.batch.state.ledger import Ledger
from inflight.batch.state.remote_state import RemoteState, remote_state_address
from inflight.batch.storage.secret_address import masked

_STORAGE_CODES = ("storage_unreachable", "storage_denied", "storage_not_found")


class StateReplicator:
    """Replicates the state. If the storage is unreachable for a while, the job continues without replication."""

    def __init__(self, output: OutputSpec, directory: JobDirectory, on_message: Callable[[str], None]) -> None:
        address = remote_state_address(output)
        self._remote = None if address is None else RemoteState(address, directory)
        self._shown, self._on_message = masked(address or ""), on_message
        self._storage_down = False
        self._stopping = threading.Event()
        self._lost_lease: BatchError | None = None

    @contextmanager
    def lease(self) -> Iterator[None]:
        """Hold the lease while the job is open: fetch the state of another machine, and release the lease at the end.
        Raises BatchError as RemoteState does.
        """
        if self._remote is None:
            yield
            return
        renewing = threading.Thread(target=self._renew_lease, args=(self._remote,), name="batch-lease", daemon=True)
        try:
            renewing.start()  # does nothing until this machine holds the lease
            try:
                if self._remote.fetch():
                    self._on_message(f"The job's state was fetched from {self._shown}.")
                yield
            finally:
                self._stopping.set()
                renewing.join()
        finally:
            if not self._storage_down:
                with suppress(BatchError):  # otherwise the next machine waits for the lease to expire
                    self._remote.release_lease()

    def claim(self, ledger: Ledger) -> None:
        """Claim the job for this machine, so that another one that starts it is refused. Raises BatchError."""
        if self._remote is not None:
            try:
                self._remote.upload(ledger.snapshot)
            except BatchError as error:
                self._storage_down = error.code in _STORAGE_CODES
                raise

    def upload_if_due(self, ledger: Ledger) -> None:
        """Upload the state after a checkpoint, in its thread, if it is time.

        Raises BatchError `job_elsewhere` if another machine has taken over the job.
        """
        if self._lost_lease is not None:
            raise self._lost_lease
        if self._remote is not None and self._remote.due:
            self.upload(ledger)

    def upload(self, ledger: Ledger, final: bool = False) -> None:
        """Upload the state, unless the storage is unreachable. `final`: this machine stops here."""
        if self._remote is None:
            return
        try:
            self._remote.upload(ledger.snapshot, final)
            self._storage_down = False
        except BatchError as error:
            if error.code not in _STORAGE_CODES:
                raise
            if not self._storage_down or final:
                self._on_message(f"The job's state can't be saved to {self._shown} now: {error}")
            self._storage_down = True

    def _renew_lease(self, carrier: RemoteState) -> None:
        """Renew the lease in a separate thread, so that slow transfers of the state or the output do not lose it."""
        while not self._stopping.wait(remote_state.RENEW_SECONDS):
            try:
                carrier.renew_lease()
            except BatchError as error:
                if error.code == "job_elsewhere":
                    self._lost_lease = error
                    return
