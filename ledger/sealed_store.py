"""The log through the keys: tags blinded, events split and sealed, bodies opened on demand."""

from collections.abc import Iterable, Mapping, Sequence
from struct import pack

from eventsourcing.dcb.api import DCBQuery, DCBQueryItem

from memoranda.ledger.chain import framed
from memoranda.ledger.entries import FRESH_KEY, Draft, Event, Head, Row, Selector, Tag
from memoranda.ledger.errors import IntegrityFault, RefusedError
from memoranda.ledger.events import Attachment, Header, KeysRotated, TermCause, TermTaken, Value
from memoranda.ledger.keyring import Keyring
from memoranda.ledger.places import OLD_KEYS
from memoranda.ledger.recorder import Asked, SealedEvent, Snapshot, Transaction
from memoranda.ledger.sealing import NONCE_BYTES, SEAL_ENTROPY_BYTES
from memoranda.ledger.shapes import read_body, stored_types
from memoranda.ledger.stamps import Stamps

ROTATIONS = Selector(Tag("epoch", ""), (KeysRotated,))
TERM = Selector(Tag("term", ""), (TermTaken,))
"""Which host holds the term; none before a host first attached under a name."""

LOCAL_HOST = "local"
"""The host that holds every space until another attaches under a name of its own."""

HOST_LAPSES_US = 60_000_000
"""How long after its last append a host still counts as live (PM 3.5)."""


NOTHING_ASKED: Mapping[Selector, Asked] = {}


class SealedStore:
    """One snapshot of the log, opened with the keys of the space."""

    def __init__(
        self,
        snapshot: Snapshot,
        keyring: Keyring,
        space: str,
        known: Mapping[Selector, Asked] = NOTHING_ASKED,
    ) -> None:
        self._snapshot = snapshot
        self._keyring = keyring
        self._known = known
        self.space = space

    @property
    def head(self) -> Head:
        return self._snapshot.head

    def select(self, selector: Selector, after: int = 0) -> list[Event]:
        """The events behind a selector, in order; of the newest, `after` is not asked."""
        if selector.newest or not after:
            return self.select_each([selector])[0]
        asked = self.asked(selector, self._keyring)
        rows = self._snapshot.read(DCBQuery([DCBQueryItem(list(asked.types), [asked.tag])]), after)
        return [self._behind(row, asked) for row in rows]

    def select_each(self, selectors: Sequence[Selector]) -> list[list[Event]]:
        """The events behind each of some selectors, in few journeys however many they are."""
        asked = [self._known.get(it) or self.asked(it, self._keyring) for it in selectors]
        found = zip(asked, self._snapshot.under(asked), strict=True)
        return [[self._behind(row, of) for row in rows] for of, rows in found]

    @staticmethod
    def asked(selector: Selector, keyring: Keyring) -> Asked:
        """A selector as the log takes it: blind."""
        tag, shapes, newest = selector
        blinded = tag.blind or keyring.blinded(tag.kind, tag.name)
        return Asked(blinded, stored_types(shapes), newest)

    def _behind(self, row: Row, asked: Asked) -> Event:
        if asked.tag not in row.tags or row.type not in asked.types:
            raise IntegrityFault(f"position {row.position}: a tag leads to another event")
        return self.event(row)

    def rows(self, after: int, limit: int) -> list[Row]:
        """The next events behind a position as stored, for audit."""
        return self._snapshot.read(None, after, limit)

    def event(self, row: Row) -> Event:
        """A stored row as an event; raises IntegrityFault for a header no version ever wrote."""
        try:
            return Event(row, self._open)
        except IntegrityFault as fault:
            raise IntegrityFault(f"position {row.position}: {fault}") from fault

    def page(self, after: int, limit: int) -> list[Event]:
        """The next events behind a position, in order."""
        return [self.event(row) for row in self.rows(after, limit)]

    def at_positions(self, positions: Sequence[int]) -> dict[int, Event]:
        """The events at some positions, by position."""
        return {row.position: self.event(row) for row in self._snapshot.at(positions)}

    def at(self, position: int) -> Event | None:
        """The event at a position."""
        return next(iter(self.page(position - 1, 1)), None) if position > 0 else None

    def chain_at(self, position: int) -> bytes | None:
        """The link of the chain at a position; None where there is no event."""
        event = self.at(position)
        return event.row.chain if event else None

    def blinded(self, tag: Tag) -> str:
        """How the tag stands in the log."""
        return tag.blind or self._keyring.blinded(tag.kind, tag.name)

    @property
    def cursor_key(self) -> bytes:
        """Authenticates the cursors that a query hands out."""
        return self._keyring.cursor_key

    def refuse_old_keys(self) -> None:
        """Raises RefusedError where the log tells of a later key epoch than the key file knows."""
        if (own := self._keyring.key_epoch) >= self.head.key_epoch:
            return
        # The head row is nobody's word; an event is.
        headers = (event.header for event in self.select(ROTATIONS))
        if any(isinstance(it, KeysRotated) and it.key_epoch > own for it in headers):
            raise RefusedError(OLD_KEYS)

    def has_key(self, key_id: str) -> bool:
        """Whether a data key is still kept."""
        return self._keyring.holds(key_id)

    def tag_rows(self, after: int, through: int) -> set[tuple[int, str, str]]:
        """The (position, tag, type) rows of the tag table in a stretch of the log, for audit."""
        return self._snapshot.tag_rows(after, through)

    def stray_rows(self) -> list[tuple[str, int | None]]:
        """Rows of other tables that belong to no event: (table, position), for audit."""
        return self._snapshot.stray_rows()

    def storage_faults(self) -> list[str]:
        """What the engine itself finds wrong with the file, for audit."""
        return self._snapshot.storage_faults()

    def opens(self, row: Row) -> bool:
        """Whether the body is there and is what was committed to; what it says is not read."""
        return self._unsealed(row) is not None

    def _open(self, row: Row) -> Value | None:
        raw = self._unsealed(row)
        return None if raw is None else read_body(row.type, raw)

    def _unsealed(self, row: Row) -> bytes | None:
        if row.key_id is None or row.sealed is None:
            return None
        key = self._keyring.key(row.key_id)
        if key is None:
            return None
        try:
            return key.open(body_identity(self.space, row), row.commitment, row.sealed)
        except IntegrityFault as fault:
            raise IntegrityFault(f"position {row.position}: {fault}") from fault


class DecidingStore(SealedStore):
    """The deciding transaction, opened with the keys of the space."""

    newcomer: str | None = None
    """The host that takes the term with the first append, since another one holds it."""

    def __init__(
        self,
        transaction: Transaction,
        keyring: Keyring,
        space: str,
        stamps: Stamps,
        known: Mapping[Selector, Asked] = NOTHING_ASKED,
    ) -> None:
        super().__init__(transaction, keyring, space, known)
        self._transaction = transaction
        self._stamps = stamps

    @property
    def head(self) -> Head:
        """The tip, under the term of what is appended next."""
        head = super().head
        return head if self.newcomer is None else head._replace(term=head.term + 1)

    @property
    def held_term(self) -> int:
        """The term as it stands in the log."""
        return super().head.term

    @property
    def clock(self) -> int:
        """The one clock reading of this decision, in microseconds."""
        return self._transaction.clock

    @property
    def now(self) -> int:
        """The time of what is appended, in microseconds: never before the event before."""
        return self._transaction.now

    def append(self, draft: Draft) -> Event:
        """Seals and appends; durable when the deciding transaction ends."""
        self.attach()
        tags = [self.blinded(tag) for tag in draft.tags]
        event = SealedEvent(draft.header.TOPIC, header_bytes(draft.header), tags)
        if draft.body is not None:
            is_fresh = draft.key_id == FRESH_KEY
            key = self._keyring.fresh() if is_fresh else self._keyring.key(draft.key_id)
            assert key is not None, "a draft names a key that exists"
            identity = framed(
                self.space.encode(), pack(">Q", self.head.position + 1), event.type.encode()
            )
            body = draft.body.model_dump_json(exclude_defaults=True).encode()
            entropy = self._stamps.entropy(SEAL_ENTROPY_BYTES)
            event.commitment, event.sealed = key.seal(identity, body, entropy)
            event.key_id = key.key_id
        (row,) = self._transaction.append([event])
        return Event(row, lambda _: draft.body)

    def erase_bodies(self, positions: Iterable[int]) -> None:
        """Removes the bodies at these positions, with the append of this transaction."""
        self._transaction.erase_bodies(positions)

    def erase_every_body(self) -> None:
        """Removes all bodies, with the append of this transaction."""
        self._transaction.erase_every_body()

    def bodies_under(self, key_id: str) -> list[Row]:
        """The events whose bodies lie under a key."""
        return self._transaction.bodies_under(key_id)

    def leave_key(self, key_id: str) -> None:
        """Moves what still lies under a key that several bodies share to a fresh one."""
        rows = self._transaction.bodies_under(key_id)
        old = self._keyring.key(key_id)
        if not rows or old is None:
            return
        fresh = self._keyring.fresh()
        for row in rows:
            assert row.sealed is not None, "the row was found by its body"
            identity = body_identity(self.space, row)
            nonce = self._stamps.entropy(NONCE_BYTES)
            sealed = old.resealed(fresh, identity, row.commitment, row.sealed, nonce)
            self._transaction.replace_body(row.position, fresh.key_id, sealed)

    def set_key_epoch(self, key_epoch: int) -> None:
        """Names the key epoch in force, for every reader to compare."""
        self._transaction.set_key_epoch(key_epoch)

    def attach(self) -> None:
        """Takes the term for a host that does not hold it yet."""
        host, self.newcomer = self.newcomer, None
        if host is not None:
            since = self.head.position + 1
            self.take_term("attached", Attachment(host=host, since=since, clock=self.clock))

    def note_rotation(self, key_epoch: int) -> None:
        """Says on the log which key epoch is in force."""
        self.append(Draft(KeysRotated(key_epoch=key_epoch), tags=(ROTATIONS.tag,)))
        self.set_key_epoch(key_epoch)

    def take_term(self, cause: TermCause, holder: Attachment) -> None:
        """Raises the term for a host; whoever holds an older one appends nothing from here."""
        assert self.newcomer is None, "a host attaches before it raises the term"
        term, body = self.head.term + 1, holder
        self.append(Draft(TermTaken(term=term, cause=cause), body, (TERM.tag,)))
        self._transaction.set_term(term)


def body_identity(space: str, row: Row) -> bytes:
    """What a body is bound to: its space, position and type."""
    return framed(space.encode(), pack(">Q", row.position), row.type.encode())


def header_bytes(header: Header) -> bytes:
    """The header as it is stored and chained."""
    return header.model_dump_json(exclude_defaults=True).encode()


def holder_of(store: SealedStore) -> Attachment:
    """Which host holds the term, and since which position."""
    newest = store.select(TERM)
    body = newest[0].body(Attachment) if newest else None
    return body or Attachment(host=LOCAL_HOST, since=1)


def has_lapsed(wrote: int, clock: int) -> bool:
    """Whether a host that last wrote then counts as live no more."""
    return clock >= wrote + HOST_LAPSES_US
