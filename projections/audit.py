"""Audit: chain, tags, commitments, receipts, keys and views agree, or where they do not."""

import sqlite3
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest

from memoranda.ledger import chain
from memoranda.ledger.ending import chain_of
from memoranda.ledger.entries import Event, Head, Row, Tag
from memoranda.ledger.errors import IntegrityFault, StorageFault
from memoranda.ledger.events import (
    ForgetCompleted,
    ForgetReleased,
    HeldWords,
    KeysRotated,
    MessageCaptured,
    MessageForgotten,
    NamedBody,
    OperationAborted,
    OperationPrepared,
    RecordBody,
    RecordCommitted,
    TermTaken,
    Value,
)
from memoranda.ledger.log import FIRST_KEY_EPOCH, Log
from memoranda.ledger.places import Place
from memoranda.ledger.recorder import Snapshot
from memoranda.ledger.sealed_store import SealedStore
from memoranda.ledger.stamps import Stamps
from memoranda.projections.feed import current
from memoranda.projections.views import View, ViewFile

PAGE = 500
TAG_STRETCH = 100_000
"""Events whose tag rows are held in memory at once: the tag table knows no order of positions."""

READINGS_MAX = 5
"""How often an audit looks again while forgets overtake its look."""

FINDINGS_MAX = 100


class Finding(Value):
    """One disagreement: where, what kind, and in words; never what an event says."""

    position: int | None
    kind: str
    message: str


class AuditReport(Value):
    """What an audit saw; the log is whole when there are no findings."""

    space: str
    events: int
    opened: int
    erased: int
    records: int
    position: int
    chain: str
    key_epoch: int
    findings: tuple[Finding, ...]
    is_truncated: bool = False


class Audit:
    """Verifies one space's log from the first event to the head."""

    def __init__(self, log: Log, views: ViewFile, checked: Iterable[View], index: View) -> None:
        self._log = log
        self._views = views
        self._checked = tuple(checked)
        self._index = index

    def verify(self, *, with_index: bool = False) -> AuditReport:
        """Recomputes the log and its views; writes nothing but stale views.

        The search index, which takes longer than all the rest, is recomputed when asked for.
        """
        checked = (*self._checked, self._index) if with_index else self._checked
        verifier = Verifier()
        self._log.refuse_if_closed()
        if not self._log.is_serving:
            # What this opening can no longer read would be findings on a log that is whole.
            raise StorageFault("an earlier write failed; close the ledger and open it again")
        self._log.drop_opened_keys()
        for view in checked:
            self._expect(verifier, view)
        try:
            with self._log.reading() as store:
                for fault in store.storage_faults():
                    verifier.find(None, "storage", fault)
                verifier.read(store)
                verifier.finish(store)
        except (StorageFault, IntegrityFault) as fault:
            verifier.find(None, "storage", str(fault))
        for view in checked:
            any(self._compare(verifier, view, tries=n) for n in range(READINGS_MAX, 0, -1))
        for _ in range(READINGS_MAX):
            if verifier.keyless:
                self._read_on(verifier)
        verifier.settle()
        return verifier.report(self._log.space)

    def _expect(self, verifier: "Verifier", view: View) -> None:
        # What keeps a view from being computed is found, and said, when it is compared.
        with (
            suppress(StorageFault, IntegrityFault),
            current(self._log, self._views, view) as (_, connection),
        ):
            verifier.expect(view, connection)

    def _compare(self, verifier: "Verifier", view: View, tries: int) -> bool:
        """Whether the view was compared; not yet, while a forget overtakes and tries are left."""
        try:
            with current(self._log, self._views, view) as (store, connection):
                verifier.read(store)
                if verifier.keyless and tries > 1:
                    return False
                verifier.compare(view, connection)
        except (StorageFault, IntegrityFault) as fault:
            verifier.find(None, "view", f"{view.name} cannot be computed: {fault}")
        return True

    def _read_on(self, verifier: "Verifier") -> None:
        with suppress(StorageFault, IntegrityFault), self._log.reading() as store:
            verifier.read(store)


def verify_chain(place: Place, stamps: Stamps) -> AuditReport:
    """Verifies a log whose keys are gone, from the first link to the head; opens nothing."""
    verifier = Verifier()
    with chain_of(place, stamps) as snapshot:
        verifier.read_rows(snapshot, place.space)
    return verifier.report(place.space)


@dataclass
class _Record:
    """A record as folded so far."""

    revision: int
    commitment: str
    forgotten_at: int | None


class Verifier:
    """Reads a log in order and remembers what later events must agree with."""

    def __init__(self) -> None:
        self._findings: list[Finding] = []
        self._tip = Head(0, b"", 0, 0, 0)
        self._opened = 0
        self._erased = 0
        self._records: dict[str, _Record] = {}
        self._operations: set[str] = set()
        self._unread: list[tuple[int, tuple[str, ...]]] = []
        self._explained: dict[str, int] = {}
        self._removed_keys: dict[str, int] = {}
        self._completed = 0
        self._key_epoch = FIRST_KEY_EPOCH
        self._term = 0
        self._prepared: dict[str, str] = {}
        self._tags: set[tuple[int, str, str]] = set()
        self._tags_through = 0
        self._head = 0
        self._keyless: list[tuple[int, str, int]] = []
        self._views: tuple[View, ...] = ()
        self._computed: dict[str, sqlite3.Connection] = {}

    def expect(self, view: View, kept: sqlite3.Connection) -> None:
        """Computes the view beside the audit, comparable with the copy that is kept."""
        self._views = (*self._views, view)
        self._computed[view.name] = _empty(view, kept)

    def find(self, position: int | None, kind: str, message: str) -> None:
        """Notes a disagreement."""
        self._findings.append(Finding(position=position, kind=kind, message=message))

    def report(self, space: str) -> AuditReport:
        return AuditReport(
            space=space,
            events=self._tip.position,
            opened=self._opened,
            erased=self._erased,
            records=len(self._records),
            position=self._tip.position,
            chain=self._tip.chain.hex(),
            key_epoch=self._tip.key_epoch,
            findings=tuple(self._findings[:FINDINGS_MAX]),
            is_truncated=len(self._findings) > FINDINGS_MAX,
        )

    def read(self, store: SealedStore) -> None:
        """Reads on to the snapshot's head."""
        if self._tip.position == 0:
            self._tip = self._tip._replace(chain=chain.origin(store.space))
        self._head = store.head.position
        while rows := store.rows(self._tip.position, PAGE):
            if rows[-1].position > self._tags_through:
                self._load_tags(store, rows[-1].position)
            for row in rows:
                self._link(row)
                self._index(row)
                self._event(store, row)
        self._tip = self._tip._replace(key_epoch=store.head.key_epoch, term=store.head.term)

    def read_rows(self, snapshot: Snapshot, space: str) -> None:
        """Reads links and tags alone, of a log that nobody can open any more."""
        self._tip = self._tip._replace(chain=chain.origin(space))
        while rows := snapshot.read(None, self._tip.position, PAGE):
            self._tags |= snapshot.tag_rows(self._tip.position, rows[-1].position)
            for row in rows:
                self._link(row)
                self._index(row)
                self._erased += row.sealed is None
        head = snapshot.head
        if head[:2] != self._tip[:2]:
            self.find(head.position, "head", "the head row is not at the last event")
        self._tip = self._tip._replace(key_epoch=head.key_epoch, term=head.term)

    # -- one event --------------------------------------------------------------------------

    def _link(self, row: Row) -> None:
        """The chain goes on, position and time move forwards."""
        if row.position != self._tip.position + 1:
            self.find(row.position, "gap", f"follows position {self._tip.position}")
        if row.recorded_at <= self._tip.recorded_at:
            self.find(row.position, "time", "is not later than the event before")
        parts = (row.type, row.header, row.commitment, row.tags)
        expected = chain.link(self._tip.chain, row.position, row.recorded_at, parts)
        if expected != row.chain:
            self.find(row.position, "chain", "the link does not follow from what is stored")
        # Goes on from the stored link, so that one change is one finding.
        self._tip = Head(row.position, row.chain, *self._tip[2:4], row.recorded_at)

    def _load_tags(self, store: SealedStore, position: int) -> None:
        # Never beyond what this snapshot holds: what follows is loaded from a later one.
        through = min(self._tags_through + TAG_STRETCH, max(self._head, position))
        self._tags |= store.tag_rows(self._tags_through, through)
        self._tags_through = through

    def _index(self, row: Row) -> None:
        """Every tag of the event has its row; what is left over has no event."""
        for tag in row.tags:
            entry = (row.position, tag, row.type)
            if entry not in self._tags:
                self.find(row.position, "tag", f"the row of its {_kind(tag)} tag is missing")
            self._tags.discard(entry)

    def _event(self, store: SealedStore, row: Row) -> None:
        try:
            event = store.event(row)
            if isinstance(event.header, MessageCaptured):
                # Nothing later depends on what a message says: it must open, and no more.
                self._body(event, is_open=store.opens(row))
            else:
                self._opened_event(store, event, event.body(Value))
        except IntegrityFault as fault:
            self.find(row.position, "seal", str(fault))

    def _opened_event(self, store: SealedStore, event: Event, body: Value | None) -> None:
        self._body(event, is_open=body is not None)
        if isinstance(event.header, RecordCommitted):
            self._record(store, event, body)
        self._term_of(event)
        self._intent(event)
        self._erasure(event)
        if isinstance(body, HeldWords):
            self._names(store, event, Tag("personal:rec", body.record_id))
        operation = event.tag("personal:op")
        if isinstance(body, NamedBody) and operation:
            self._names(store, event, Tag("personal:op", body.operation_id))
        if operation and not isinstance(event.header, OperationPrepared):
            self._once(event, operation.blind or "")
        for view in self._views:
            view.apply(self._computed[view.name], event)

    def _body(self, event: Event, *, is_open: bool) -> None:
        row = event.row
        if is_open:
            self._opened += 1
        elif row.key_id is not None:
            self._keyless.append((row.position, row.key_id, self._head))
        elif event.header.BODY is not None:
            self._erased += 1
            self._unread.append((row.position, row.tags))

    def _erasure(self, event: Event) -> None:
        if isinstance(event.header, MessageForgotten | ForgetReleased):
            self._explain(event, event.header.removed_keys)
        if isinstance(event.header, ForgetCompleted):
            self._completed = event.header.through
        if isinstance(event.header, KeysRotated):
            self._rotation(event, event.header.key_epoch)

    def _rotation(self, event: Event, key_epoch: int) -> None:
        if key_epoch <= self._key_epoch:
            self.find(event.position, "epoch", f"key epoch {key_epoch} was there already")
        self._key_epoch = key_epoch

    def _term_of(self, event: Event) -> None:
        """Every append carries the term in force; a new one is higher by one."""
        term = getattr(event.header, "term", self._term)
        is_taken = isinstance(event.header, TermTaken)
        if term != self._term + is_taken:
            self.find(event.position, "term", f"is written under term {term}, not {self._term}")
        self._term = term

    def _intent(self, event: Event) -> None:
        """An end is of exactly the intent that was prepared; an abort explains its lost body."""
        header, operation = event.header, event.tag("personal:op")
        name = (operation.blind if operation else None) or ""
        if isinstance(header, OperationPrepared):
            self._prepared[name] = event.row.commitment.hex()
        if not isinstance(header, OperationAborted | RecordCommitted):
            return
        if self._prepared.get(name) != header.intent:
            self.find(event.position, "receipt", "it is not of the intent that was prepared")
        if isinstance(header, OperationAborted):
            self._explained[name] = event.position
            self._removed_keys.update(dict.fromkeys(header.removed_keys, event.position))

    def _once(self, event: Event, operation: str) -> None:
        if operation in self._operations:
            self.find(event.position, "receipt", "its operation has a terminal receipt already")
        self._operations.add(operation)

    def _names(self, store: SealedStore, event: Event, tag: Tag) -> None:
        """The sealed body and the public tag name the same thing."""
        if store.blinded(tag) not in event.row.tags:
            kind = tag.kind.rpartition(":")[2]
            self.find(event.position, "receipt", f"its {kind} tag is not that of its body")

    def _record(self, store: SealedStore, event: Event, body: Value | None) -> None:
        """The receipt in the header, the record in the body and the history agree."""
        header, tag = event.header, event.tag("personal:rec")
        assert isinstance(header, RecordCommitted), "the caller has looked"
        if tag is None or tag.blind is None:
            self.find(event.position, "receipt", "it names no record")
            return
        before = self._records.get(tag.blind)
        revision = before.revision if before else None
        # A migrated record begins at the revision that its earlier store had; only a first one may.
        is_next = header.to_revision == (revision or 0) + 1 and not header.is_migrated
        is_taken_over = header.is_migrated and before is None and header.to_revision >= 1
        if header.from_revision != revision or not (is_next or is_taken_over):
            self.find(event.position, "receipt", "its revisions do not follow the record's")
        if isinstance(body, RecordBody):
            self._names(store, event, Tag("personal:rec", str(body.value["id"])))
            stated = (body.value["revision"], body.value["status"])
            if stated != (header.to_revision, header.status):
                self.find(event.position, "receipt", "its record is not the one it answers for")
            if body.expected != (before.commitment if before else None):
                self.find(event.position, "receipt", "it expects another record than was there")
            if body.actor.role == "item" and not _is_candidate(body):
                self.find(event.position, "authority", "a background item decided")
        is_forgotten = header.status == "forgotten"
        forgotten_at = event.position if is_forgotten else before.forgotten_at if before else None
        self._records[tag.blind] = _Record(
            header.to_revision, event.row.commitment.hex(), forgotten_at
        )
        if is_forgotten:
            self._explain(event, header.removed_keys)

    def _explain(self, event: Event, removed_keys: Iterable[str]) -> None:
        """What an event says of bodies and keys that are gone."""
        explained = (t for t in event.row.tags if t.startswith(("con:", "msg:", "held:")))
        self._explained.update(dict.fromkeys(explained, event.position))
        self._removed_keys.update(dict.fromkeys(removed_keys, event.position))

    @property
    def keyless(self) -> list[int]:
        """Where a body is without its key, but for those whose forget came after the snapshot."""
        removed = self._removed_keys
        return [at for at, key_id, head in self._keyless if removed.get(key_id, 0) <= head]

    def settle(self) -> None:
        """What later events could still have explained."""
        for position in self.keyless:
            self.find(position, "key", "the key of a body that is still there is missing")

    # -- at the head ------------------------------------------------------------------------

    def finish(self, store: SealedStore) -> None:
        """What can only be said once everything was read."""
        if store.head[:2] != self._tip[:2]:
            self.find(store.head.position, "head", "the head row is not at the last event")
        if store.head.key_epoch != self._key_epoch:
            self.find(store.head.position, "head", f"the key epoch of the log is {self._key_epoch}")
        if store.head.term != self._term:
            self.find(store.head.position, "head", f"the term of the log is {self._term}")
        # A damaged row may hold anything in place of its tag.
        for position, tag, _ in sorted(self._tags, key=repr):
            if position <= self._tip.position:
                self.find(position, "tag", f"a {_kind(str(tag))} tag row is not one of its event")
        for table, stray in store.stray_rows():
            self.find(stray, "stray", f"a row of {table} belongs to no event")
        self._erasures(store)

    def _erasures(self, store: SealedStore) -> None:
        """What is gone was forgotten, and what was forgotten is gone."""
        for position, tags in self._unread:
            if not self._is_forgotten(position, tags):
                self.find(position, "body", "its body is gone although nothing was forgotten")
        for key_id, position in self._removed_keys.items():
            if position <= self._completed and store.has_key(key_id):
                self.find(position, "key", "a key that its forget removed is still there")

    def _is_forgotten(self, position: int, tags: tuple[str, ...]) -> bool:
        """Whether a later tombstone explains an erased body."""
        records = (self._records[tag].forgotten_at for tag in tags if tag in self._records)
        others = (self._explained.get(tag) for tag in tags)
        return any(at is not None and at > position for at in (*records, *others))

    def compare(self, view: View, connection: sqlite3.Connection) -> None:
        """A view equals what the log yields when it is computed again."""
        if view.name not in self._computed:
            self.find(None, "view", f"{view.name} could not be computed; ask again")
            return
        for table in view.tables:
            kept = connection.execute(f"SELECT * FROM {table}")
            order = ", ".join(str(n + 1) for n in range(len(kept.description)))
            query = f"SELECT * FROM {table} ORDER BY {order}"
            kept = connection.execute(query)
            computed = self._computed[view.name].execute(query)
            if any(one != other for one, other in zip_longest(kept, computed)):
                self.find(None, "view", f"{table} is not what the log yields; rebuild it")


def _empty(view: View, kept: sqlite3.Connection) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    # Rows are compared in order at the end, so that no index has to be kept up on the way.
    tables = (it for it in view.schema.split(";") if not it.strip().startswith("CREATE INDEX"))
    connection.executescript(";".join(tables))
    view.begin(connection, kept)
    return connection


def _kind(tag: str) -> str:
    return tag.partition(":")[0]


def _is_candidate(body: RecordBody) -> bool:
    return body.value["status"] == "candidate" and body.value["tier"] == "detail"
