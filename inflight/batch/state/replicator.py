"""A job's state on its way to the storage that its output goes to, while the job runs; nothing for other outputs."""

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
    """A storage that is away for a while costs what another machine could have known, not the job."""

    def __init__(self, output: OutputSpec, directory: JobDirectory, on_message: Callable[[str], None]) -> None:
        address = remote_state_address(output)
        self._remote = None if address is None else RemoteState(address, directory)
        self._shown, self._on_message = masked(address or ""), on_message
        self._storage_down = False
        self._stopping = threading.Event()
        self._lost_lease: BatchError | None = None

    @contextmanager
    def lease(self) -> Iterator[None]:
        """Around the job while it is open: bring here what another machine has left, and however this one ends, let
        the next one have it. Raises BatchError as Carrier does.
        """
        if self._remote is None:
            yield
            return
        renewing = threading.Thread(target=self._renew_lease, args=(self._remote,), name="batch-lease", daemon=True)
        try:
            renewing.start()  # it does nothing before the job is this machine's
            try:
                if self._remote.fetch():
                    self._on_message(f"The job's state was fetched from {self._shown}.")
                yield
            finally:
                self._stopping.set()
                renewing.join()
        finally:
            if not self._storage_down:
                with suppress(BatchError):  # then the next one waits
                    self._remote.release_lease()

    def claim(self, ledger: Ledger) -> None:
        """Say that this machine is at work, so that another one that begins learns of it. Raises BatchError."""
        if self._remote is not None:
            try:
                self._remote.upload(ledger.snapshot)
            except BatchError as error:
                self._storage_down = error.code in _STORAGE_CODES
                raise

    def upload_if_due(self, ledger: Ledger) -> None:
        """Behind a checkpoint, in its thread.

        Raises BatchError `job_elsewhere` where another machine has taken the job over.
        """
        if self._lost_lease is not None:
            raise self._lost_lease
        if self._remote is not None and self._remote.due:
            self._upload(self._remote, ledger, final=False)

    def upload(self, ledger: Ledger) -> None:
        """Before the output is made, which may take long: all rows are done, and none need be asked again."""
        if self._remote is not None:
            self._upload(self._remote, ledger, final=False)

    def upload_final(self, ledger: Ledger) -> None:
        """This machine stops here, with all that it has done."""
        if self._remote is not None:
            self._upload(self._remote, ledger, final=True)

    def _renew_lease(self, carrier: RemoteState) -> None:
        """In a thread of its own: a state that takes long to fetch or send, or an output, must not cost the lease."""
        while not self._stopping.wait(remote_state.RENEW_SECONDS):
            try:
                carrier.renew_lease()
            except BatchError as error:
                if error.code == "job_elsewhere":
                    self._lost_lease = error
                    return

    def _upload(self, carrier: RemoteState, ledger: Ledger, final: bool) -> None:
        try:
            carrier.upload(ledger.snapshot, final)
            self._storage_down = False
        except BatchError as error:
            if error.code not in _STORAGE_CODES:
                raise
            if not self._storage_down or final:
                self._on_message(f"The job's state can't be saved to {self._shown} now: {error}")
            self._storage_down = True
