"""The erasure saga: what was forgotten or aborted is removed everywhere, then the log says so.

The tombstone comes first and the keys go second: a crash between leaves a promise that the log
remembers, where the other order would lose a memory without a trace. Every step may be repeated.
"""

from collections.abc import Callable, Sequence

from memoranda.ledger.decisions import FORGET_TAG
from memoranda.ledger.entries import Draft, Event, Selector
from memoranda.ledger.events import ForgetCompleted, OperationAborted, RecordCommitted
from memoranda.ledger.log import ROTATIONS, Log
from memoranda.ledger.sealed_store import SealedStore
from memoranda.ledger.stamps import Stamps, microseconds

FORGETS = Selector(FORGET_TAG, (RecordCommitted, OperationAborted), newest=False)
COMPLETIONS = Selector(FORGET_TAG, (ForgetCompleted,))

SHARED_US = 2_000_000
"""Forgets that follow a key rotation so soon share the next one (DESIGN 5)."""

Purge = Callable[[], str | None]
"""Removes what was derived from the log; why it could not, if so."""


class Forgetting:
    """Rolls pending forgets forward, to the end or to what holds them up."""

    def __init__(self, log: Log, stamps: Stamps, purges: Sequence[Purge] = ()) -> None:
        self._log = log
        self._stamps = stamps
        self._purges = purges
        self.is_owed = False

    def finish(self, *, is_urgent: bool = False) -> tuple[str, ...]:
        """Finishes every pending forget; why some are not finished, if so.

        An urgent one does not wait to share a key rotation with others.
        """
        with self._log.exclusive():
            with self._log.reading() as store:
                pending = pending_in(store)
                newest = store.select(ROTATIONS)
            if not pending:
                self.is_owed = False
                return ()
            self._stamps.step("forget:appended")
            tombstones = [it.row for it in pending if isinstance(it.header, RecordCommitted)]
            self._log.journal.add(tombstones)
            self._stamps.step("forget:journalled")
            self._log.remove_keys(tuple(key_id for event in pending for key_id in _keys(event)))
            self._stamps.step("forget:keys-removed")
            reasons = self._removed(needs_rotation=bool(tombstones), newest=newest, now=is_urgent)
            if not reasons:
                self._complete(pending[-1].position)
            self.is_owed = bool(reasons)
            return reasons

    def _removed(
        self, *, needs_rotation: bool, newest: Sequence[Event], now: bool
    ) -> tuple[str, ...]:
        """Everything beside the keys: derived rows, the wrapping key before, write-ahead logs."""
        reasons = [reason for purge in self._purges if (reason := purge())]
        self._stamps.step("forget:purged")
        clock = microseconds(self._stamps.now())
        is_shared = bool(newest) and 0 <= clock - newest[0].recorded_at < SHARED_US
        if needs_rotation and is_shared and not now:
            reasons.append("it shares the next key rotation, two seconds after the one before")
        elif needs_rotation:
            self._log.rotate_keys()
            self._stamps.step("forget:rotated")
        if not self._log.truncate():
            reasons.append("a reader holds an old snapshot, so a write-ahead log cannot be emptied")
        return tuple(reasons)

    def _complete(self, through: int) -> None:
        with self._log.deciding() as store:
            completion = ForgetCompleted(through=through, key_epoch=store.head.key_epoch)
            store.append(Draft(completion, tags=(FORGET_TAG,)))
        self._log.truncate()


def pending_in(store: SealedStore) -> list[Event]:
    """The forgets, and the aborts that named a key, whose erasure is not complete."""
    return store.select(FORGETS, after=erased_through(store))


def erased_through(store: SealedStore) -> int:
    """The position up to which everything that was forgotten is erased."""
    completed = store.select(COMPLETIONS)
    header = completed[0].header if completed else None
    return header.through if isinstance(header, ForgetCompleted) else 0


def _keys(event: Event) -> tuple[str, ...]:
    assert isinstance(event.header, RecordCommitted | OperationAborted), "others end nothing"
    return event.header.removed_keys
