"""The recorder port: what any engine answers, and the library's interface over just that."""

import threading
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, Self

from eventsourcing.dcb.api import (
    DCBAppendCondition,
    DCBEvent,
    DCBQuery,
    DCBReadResponse,
    DCBRecorder,
    DCBSequencedEvent,
    DCBSubscription,
)
from eventsourcing.dcb.popo import SimpleDCBReadResponse
from eventsourcing.persistence import IntegrityError, ProgrammingError

from memoranda.ledger.entries import UNSEEN, Head, Row
from memoranda.ledger.locks import SpaceLock
from memoranda.ledger.stamps import Stamps

POLL_S = 0.02


@dataclass
class SealedEvent(DCBEvent):
    """An event whose content is sealed: `data` is the public header."""

    commitment: bytes = b""
    key_id: str | None = None
    sealed: bytes = field(default=b"", repr=False)


class Asked(NamedTuple):
    """What is asked of the log: events of some types under a tag, all of them or the newest."""

    tag: str
    types: tuple[str, ...]
    newest: bool = True


class Snapshot(Protocol):
    """One consistent state of a space's log, over opaque tags and bytes."""

    head: Head
    goes_on: bool
    """Whether the log goes on from a head that was seen before."""

    def under(self, asked: Sequence[Asked]) -> list[list[Row]]:
        """The events under each of some tags, in order; where only the newest, no other costs."""
        ...

    def read(
        self, query: DCBQuery | None = None, after: int = 0, limit: int | None = None
    ) -> list[Row]:
        """Events behind a position in order; those that match any item, or all without items."""
        ...

    def at(self, positions: Sequence[int]) -> list[Row]:
        """The events at some positions."""
        ...

    def tag_rows(self, after: int, through: int) -> set[tuple[int, str, str]]:
        """The (position, tag, type) rows of the tag table in a stretch of the log, for audit."""
        ...

    def stray_rows(self) -> list[tuple[str, int | None]]:
        """Rows that belong to no event: (table, position), for audit."""
        ...

    def storage_faults(self) -> list[str]:
        """What the engine itself finds wrong with its storage, for audit."""
        ...


class Transaction(Snapshot, Protocol):
    """The deciding transaction: what is read here cannot change before it is appended to."""

    clock: int
    now: int

    def append(self, events: Sequence[DCBEvent]) -> list[Row]:
        """Appends at the head; nothing is durable before the transaction ends."""
        ...

    def erase_bodies(self, positions: Iterable[int]) -> None:
        """Removes bodies; headers, commitments and tags stay, so the chain still verifies."""
        ...

    def erase_every_body(self) -> None:
        """Removes all of them; the chain still verifies."""
        ...

    def bodies_under(self, key_id: str) -> list[Row]:
        """The events whose bodies lie under a key; for keys that several share."""
        ...

    def replace_body(self, position: int, key_id: str, sealed: bytes) -> None:
        """Puts the same body under another key."""
        ...

    def set_key_epoch(self, key_epoch: int) -> None:
        """Names the key epoch in force in the head row."""
        ...

    def set_term(self, term: int) -> None:
        """Names the term in force in the head row."""
        ...


class Recorder(DCBRecorder):
    """The log of one space on some engine.

    `deciding()` and `reading()` are what the product uses; `read`, `append` and `subscribe` are
    the library's recorder interface over the same two, which its conformance suite exercises.
    """

    seen = UNSEEN
    """The head as its user last saw it: each snapshot tells whether the log goes on from there."""

    has_failed = False
    """Whether a durable write failed: nothing is answered until the log is opened again."""

    @abstractmethod
    def deciding(self, first: Sequence[Asked] = ()) -> AbstractContextManager[Transaction]:
        """Holds the space's lock from the first read to the durable append.

        What will be asked `first` of all is known before: a far engine answers it with the head.
        An exception inside rolls back. Raises StorageFault when nothing was written, and
        OutcomeUnknown when the fault came at the durable write itself.
        """

    @abstractmethod
    def reading(self) -> AbstractContextManager[Snapshot]:
        """One snapshot; short, since it holds back the truncation of the write-ahead log."""

    @abstractmethod
    def truncate(self) -> bool:
        """Leaves nothing of removed rows in write-ahead logs; False while a reader prevents it."""

    @abstractmethod
    def copy_to(self, path: Path) -> None:
        """Writes the log as it is now into an empty SQLite file, without what was removed."""

    @abstractmethod
    def close(self) -> None:
        """Ends every connection; safe beside other processes."""

    def append(
        self, events: Sequence[DCBEvent], condition: DCBAppendCondition | None = None
    ) -> int:
        if not events:
            raise ProgrammingError("an append needs at least one event")
        with self.deciding() as transaction:
            if condition is not None:
                self._check(transaction, condition)
            return transaction.append(events)[-1].position

    def read(
        self, query: DCBQuery | None = None, *, after: int | None = None, limit: int | None = None
    ) -> DCBReadResponse:
        with self.reading() as snapshot:
            rows = snapshot.read(query, after or 0, limit)
            tip = snapshot.head.position or None
        if limit is not None:
            tip = rows[-1].position if rows else None
        events = (
            DCBSequencedEvent(DCBEvent(row.type, row.header, list(row.tags)), row.position)
            for row in rows
        )
        return SimpleDCBReadResponse(events, tip)

    def subscribe(
        self, query: DCBQuery | None = None, *, after: int | None = None
    ) -> "PollingSubscription":
        return PollingSubscription(self, query, after)

    def _check(self, transaction: Transaction, condition: DCBAppendCondition) -> None:
        # An empty query matches every event, as the library defines it.
        found = transaction.read(condition.fail_if_events_match, condition.after or 0, limit=1)
        if found:
            raise IntegrityError(f"the condition is met by position {found[0].position}")


class Engine(Protocol):
    """Where the log of one space is kept."""

    @property
    def is_shared(self) -> bool:
        """Whether it queues its writers itself, so that they share the lock of the space."""
        ...

    @property
    def leftover(self) -> str | None:
        """What stays of removed rows where nobody here can remove it; None when nothing does."""
        ...

    def recorder(self, lock: SpaceLock, stamps: Stamps) -> Recorder:
        """Opens the log; makes the tables where there are none."""
        ...

    def exists(self) -> bool:
        """Whether there is a log of this space; raises RefusedError for what is not ours."""
        ...

    def put(self, copy: Path) -> Head:
        """Puts a copy, as `copy_to` writes it, in place of the log, in one transaction.

        The head of the log that was there.
        """
        ...

    def set_aside(self, file: Path) -> None:
        """Moves the log into a file, as `copy_to` writes it."""
        ...


class PollingSubscription(DCBSubscription[Recorder]):
    """Follows the log by looking again; for the conformance suite, the product pulls."""

    def __init__(self, recorder: Recorder, query: DCBQuery | None, after: int | None) -> None:
        super().__init__(recorder, query, after)
        self._wake = threading.Event()

    def __iter__(self) -> Self:
        return self

    def stop(self) -> None:
        super().stop()
        self._wake.set()

    def __next__(self) -> DCBSequencedEvent:
        while not self._has_been_stopped:
            for event in self._recorder.read(self._query, after=self._last_position, limit=1):
                self._last_position = event.position
                return event
            self._wake.wait(POLL_S)
        raise StopIteration
