"""The erasure saga: what was forgotten or aborted is removed everywhere, then the log says so.

The tombstone comes first and the keys go second: a crash between leaves a promise that the log
remembers, where the other order would lose a memory without a trace. Every step may be repeated.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from memoranda.ledger.decisions import Decided, apply
from memoranda.ledger.entries import Draft, Event, Head, Selector
from memoranda.ledger.errors import RefusedError, StorageFault
from memoranda.ledger.events import (
    ForgetCompleted,
    ForgetHeld,
    ForgetReleased,
    MessageForgotten,
    OperationAborted,
    RecordBody,
    RecordCommitted,
)
from memoranda.ledger.guards import Seen, captured_at, message_guard
from memoranda.ledger.holding import (
    FORGET_TAG,
    all_held,
    due,
    ends_at,
    is_beyond,
    readings_since,
    still_held,
    until_of,
)
from memoranda.ledger.log import Log
from memoranda.ledger.receipts import ForgetReceipt, Receipt
from memoranda.ledger.sealed_store import ROTATIONS, SealedStore
from memoranda.ledger.sources import parse_ref, subject
from memoranda.ledger.stamps import Stamps, microseconds, moment_of, time_text
from memoranda.ledger.witness import Copies

FORGETS = Selector(
    FORGET_TAG,
    (RecordCommitted, MessageForgotten, OperationAborted, ForgetReleased),
    newest=False,
)
COMPLETIONS = Selector(FORGET_TAG, (ForgetCompleted,))

SHARED_US = 2_000_000
"""Forgets that follow a key rotation so soon share the next one (DESIGN 5)."""

SHARED = "it shares the next key rotation, two seconds after the one before"

INTERRUPTED = "it was interrupted"


class Reached(NamedTuple):
    """How far an erasure is: when it was through or what holds it up, and what it cannot reach."""

    erased_at: str | None
    pending: tuple[str, ...]
    copies: tuple[str, ...]


Purge = Callable[[], str | None]
"""Removes what was derived from the log; why it could not, if so."""


class Forgetting:
    """Rolls pending forgets forward, to the end or to what holds them up."""

    def __init__(self, log: Log, stamps: Stamps, purges: Sequence[Purge] = ()) -> None:
        self._log = log
        self._stamps = stamps
        self._purges = purges
        self._reasons: tuple[str, ...] = (INTERRUPTED,)
        self._removed: bytes | None = None
        self._rotated_at = 0
        self._due: int | None = None
        self._looked_at: int | None = None

    @property
    def is_owed(self) -> bool:
        """Whether something holds an erasure up, nobody has looked, or what is held may be due.

        Not while finishing it would fence another host, which may be idle and no more.
        """
        is_late = bool(self._reasons) or self._is_due(self._log.seen)
        return is_late and self._log.holds_term

    def held(self) -> tuple[str, ...]:
        """What is still held for the person, as reasons why not everything is erased."""
        with self._log.reading() as store:
            return _held_until(all_held(store))

    def overdue(self) -> int:
        """How many forgets are held past their windows, as the host that holds the term is away."""
        if self._log.holds_term:
            return 0
        with self._log.reading() as store:
            return sum(until_of(it) <= self._clock() for it in all_held(store))

    def finish(self, *, is_urgent: bool = False) -> tuple[str, ...]:
        """Finishes every pending forget; why some are not finished, if so.

        An urgent one does not wait to share a key rotation with others. What is held falls first,
        once its time is over.
        """
        self.release()
        with self._log.reading() as store:
            seen, rotated = pending_in(store), store.select(ROTATIONS)
            latest = store.head.recorded_at
        if not seen:
            self._reasons = ()
            return ()
        # Until it is through, whatever stops it here is made up for by the next commit.
        self._reasons = (INTERRUPTED,)
        is_early = _rotates(seen) and not is_urgent and self._is_early(rotated, latest)
        # The views' lock is never waited for inside the space's: a reader takes them the other way.
        reasons = [] if is_early else [reason for purge in self._purges if (reason := purge())]
        self._stamps.step("forget:purged")
        with self._log.exclusive():
            with self._log.reading() as store:
                pending = [it for it in pending_in(store) if it.position <= seen[-1].position]
            # By the chain, since a restored log has other forgets at the same positions.
            if pending and pending[-1].row.chain != self._removed:
                self._remove(pending)
            if pending and not is_early:
                reasons += self._swept(needs_rotation=_rotates(pending))
            if pending and not is_early and not reasons:
                self._complete(pending[-1].position)
        self._reasons = (SHARED,) if is_early else tuple(reasons)
        return self._reasons

    def take_up(self) -> None:
        """What an opening does: finishes what is owed, or removes its keys where it fences nobody.

        The rest is then for the host that holds the term, or for the first append of this one.
        """
        if self._log.holds_term:
            self.finish(is_urgent=True)
            return
        with self._log.exclusive():
            with self._log.reading() as store:
                pending = pending_in(store)
            if pending:
                self._remove(pending)

    def release(self, *, is_early: bool = False) -> None:
        """Lets go of what is held, as soon as its time is over, or at once; `finish` follows it."""
        with self._log.reading() as store:
            held, head = all_held(store), store.head
            readings = readings_since(store, held)
        self._looked_at = head.key_epoch
        self._due = _next_look(held, readings, self._clock())
        if not held or not (is_early or self._is_due(head)):
            return
        with self._log.deciding() as store:
            held, clock = all_held(store), store.clock
            readings = readings_since(store, held)
            over = {it.position: ends_at(it, readings, clock) for it in held}
            falling = [it for it in held if is_early or (over[it.position] or clock + 1) <= clock]
            kept = [it for it in held if it not in falling]
            if falling:
                through = kept[0].position - 1 if kept else store.head.position
                apply(store, _released(falling, through, is_early=is_early))
            if any(over[it.position] is None and is_beyond(it, clock) for it in kept):
                event = store.append(due(clock))
                readings.append((event.position, clock))
        self._due = _next_look(kept, readings, clock)
        self._stamps.step("forget:released")

    def _is_due(self, head: Head) -> bool:
        """Whether to look: its time is over, or another process has rotated, as forgets do."""
        if head.key_epoch != self._looked_at:
            return True
        return self._due is not None and self._clock() >= self._due

    def _clock(self) -> int:
        return microseconds(self._stamps.now())

    def _is_early(self, rotated: Sequence[Event], latest: int) -> bool:
        if not rotated:
            return False
        clock = self._clock()
        # While the log's time lies ahead it stands still: nothing would ever be late by it.
        is_ahead = latest - clock > SHARED_US
        since = self._rotated_at if is_ahead else rotated[0].recorded_at
        return abs(clock - since) < SHARED_US

    def _remove(self, pending: Sequence[Event]) -> None:
        """The journal first: what it names can be removed again from any older copy."""
        self._stamps.step("forget:appended")
        self._log.journal.add(event.row for event in pending)
        self._stamps.step("forget:journalled")
        self._log.remove_keys(tuple(key_id for event in pending for key_id in _keys(event)))
        self._stamps.step("forget:keys-removed")
        self._removed = pending[-1].row.chain

    def _swept(self, *, needs_rotation: bool) -> list[str]:
        """Everything beside the keys: the wrapping key before, and the write-ahead logs."""
        reasons = []
        if needs_rotation:
            try:
                key_epoch = self._log.rotate_keys()
                self._rotated_at = self._clock()
                # Our own rotation tells of no forget that was not looked at.
                if self._looked_at == key_epoch - 1:
                    self._looked_at = key_epoch
            except (StorageFault, RefusedError) as fault:
                reasons.append(str(fault))
            self._stamps.step("forget:rotated")
        if not self._log.truncate():
            reasons.append("a reader's old snapshot or a full disk keeps a write-ahead log")
        return reasons

    def told(self, receipt: Receipt) -> ForgetReceipt:
        """A forget's receipt with how far its erasure is, and which copies are out of its reach."""
        return ForgetReceipt(
            **{name: getattr(receipt, name) for name in Receipt.model_fields},
            forgotten_at=receipt.decided_at,
            **self.reached([receipt.position])._asdict(),
        )

    def reached(self, positions: Sequence[int]) -> Reached:
        """How far the erasure of one or more tombstones is, and what is out of its reach."""
        newest = max(positions)
        with self._log.reading() as store:
            tombstones = [event for it in positions if (event := store.at(it))]
            copied = [event for it in tombstones for event in _copied(store, it)]
            held, last = still_held(copied), _last_release(store, copied)
            completed = store.select(Selector(FORGET_TAG, (ForgetCompleted,), newest=False))
            covering = (it for it in completed if _through(it) >= max(newest, last))
            erased = None if held else next(covering, None)
            copies = dict.fromkeys(copy for it in tombstones for copy in _copies(store, it))
            # What is not erased yet lies under the present wrapping key, in every bundle.
            needed = (_key_epoch(erased) if erased else None) or store.head.key_epoch + 1
            outside = [*_outside(self._log.copies.read(), needed, newest)]
        if leftover := self._log.engine.leftover:
            outside.append(leftover)
        reasons = _held_until(held) + self._reasons
        return Reached(
            erased_at=time_text(moment_of(erased.recorded_at)) if erased else None,
            pending=() if erased else reasons or ("another process is at it",),
            copies=(*copies, *outside),
        )

    def _complete(self, through: int) -> None:
        with self._log.deciding() as store:
            completion = ForgetCompleted(through=through, key_epoch=store.head.key_epoch)
            store.append(Draft(completion, tags=(FORGET_TAG,)))
        self._log.truncate()


def _released(held: Sequence[Event], through: int, *, is_early: bool) -> Decided:
    keys = tuple(key_id for it in held if (key_id := it.row.key_id))
    header = ForgetReleased(removed_keys=keys, is_early=is_early, through=through)
    tags = (FORGET_TAG, *(tag for it in held if (tag := it.tag("held"))))
    return Decided(Draft(header, tags=tags), erased=tuple(it.position for it in held))


def _next_look(
    held: Sequence[Event], readings: Sequence[tuple[int, int]], clock: int
) -> int | None:
    """When, by the clock, to look at what is held: its window is over, or was misread."""
    return min((_look_at(it, ends_at(it, readings, clock), clock) for it in held), default=None)


def _look_at(held: Event, over: int | None, clock: int) -> int:
    if over is not None:
        return over
    return clock if is_beyond(held, clock) else until_of(held)


def _held_until(held: Sequence[Event]) -> tuple[str, ...]:
    ends = dict.fromkeys(time_text(moment_of(until_of(it))) for it in held)
    return tuple(f"held for the person until {end}" for end in ends)


def _copied(store: SealedStore, tombstone: Event) -> list[Event]:
    """Everything that was ever held of the record."""
    record = tombstone.tag("personal:rec")
    return store.select(Selector(record, (ForgetHeld,), newest=False)) if record else []


def _last_release(store: SealedStore, copied: Sequence[Event]) -> int:
    """The position at which the last of them was let go of; 0 where nothing was."""
    tags = (tag for it in copied if (tag := it.tag("held")))
    released = (store.select(Selector(tag, (ForgetReleased,))) for tag in tags)
    return max((events[0].position for events in released if events), default=0)


def _rotates(pending: Sequence[Event]) -> bool:
    """Whether memories fell: what an abort takes was never one, its key goes and no more."""
    return any(not isinstance(it.header, OperationAborted) for it in pending)


def pending_in(store: SealedStore) -> list[Event]:
    """The forgets, and the aborts that named a key, whose erasure is not complete."""
    return store.select(FORGETS, after=erased_through(store))


def erased_through(store: SealedStore) -> int:
    """The position up to which everything that was forgotten is erased."""
    completed = store.select(COMPLETIONS)
    return _through(completed[0]) if completed else 0


def _through(completed: Event) -> int:
    assert isinstance(completed.header, ForgetCompleted), "the selector asks for one shape"
    return completed.header.through


def _copies(store: SealedStore, tombstone: Event) -> Iterator[str]:
    """The captured messages that still say what the record was taken from."""
    body = tombstone.body(RecordBody)
    blocked = body.value["blocked_sources"] if body else ()
    assert isinstance(blocked, list | tuple), "a tombstone lists its blocks"
    for address in dict.fromkeys(subject(ref) for ref in blocked if parse_ref(ref)):
        seen = Seen()
        seen.look(store, [message_guard(address)])
        if captured_at(seen, address):
            yield f"the captured message {address}"


def _outside(copies: Copies, needed: int, position: int) -> Iterator[str]:
    """The copies elsewhere that still read what was forgotten at a position."""
    for it in copies.backups:
        if it.key_epoch < needed:
            yield f"the backup in {it.path}: its key bundle with the recovery code still reads it"
    for path in copies.exported(before=position):
        yield f"the export {path}, if the record was in it"


def _key_epoch(completed: Event) -> int | None:
    assert isinstance(completed.header, ForgetCompleted), "the selector asks for one shape"
    return completed.header.key_epoch


def _keys(event: Event) -> tuple[str, ...]:
    header = event.header
    assert isinstance(
        header, RecordCommitted | MessageForgotten | OperationAborted | ForgetReleased
    ), "one of FORGETS"
    return header.removed_keys
