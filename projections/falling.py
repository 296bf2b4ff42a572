"""What a forget of many would take: everything from one source, from one session, or all of it."""

import sqlite3
from collections.abc import Iterable, Iterator

from memoranda.ledger.asking import AskFalling
from memoranda.ledger.authority import Caller, PersonClient
from memoranda.ledger.candidates import (
    Stored,
    history_of,
    newest_of,
    owner_of,
    stored_in,
    users_of,
)
from memoranda.ledger.capturing import session_messages
from memoranda.ledger.commands import admit
from memoranda.ledger.errors import Refusal, Refused
from memoranda.ledger.events import HeldWords, IntentBody, Message, Status, Value
from memoranda.ledger.guards import Seen, captured_at, message_guard
from memoranda.ledger.holding import all_held, held_on, still_held
from memoranda.ledger.log import Log
from memoranda.ledger.personal import Record, source_refs
from memoranda.ledger.sealed_store import SealedStore
from memoranda.ledger.sources import message_ref, overlap, overlapping_any, parse_ref
from memoranda.projections.feed import current
from memoranda.projections.records import RecordsView, id_text
from memoranda.projections.views import ViewFile


class FallingRecord(Value):
    """A record that would fall, as it stands; of a forgotten one, what is held for the person."""

    record_id: str
    revision: int
    status: Status
    content: str


class FallingIntent(Value):
    """An operation without an end, whose text would fall with it; a forget's has none."""

    operation_id: str
    content: str | None


class Fall(Value):
    """What would fall: records with all their revisions, and the captured messages meant.

    `prepared` are the operations that hold such a record, or say what is meant of one to come.
    """

    records: tuple[FallingRecord, ...]
    messages: tuple[str, ...]
    prepared: tuple[FallingIntent, ...] = ()


class Falling:
    """Looks ahead of a forget; writes nothing."""

    def __init__(self, log: Log, views: ViewFile) -> None:
        self._log = log
        self._views = views
        self._view = RecordsView()

    def of(self, caller: Caller, **request: object) -> Fall | Refused:
        """Records that any revision bound to what is meant; fields of `commands.AskFalling`."""
        asked = admit(AskFalling, request)
        if isinstance(asked, Refused):
            return asked
        if not isinstance(caller, PersonClient):
            return Refused(Refusal.NOT_AUTHORIZED)
        with current(self._log, self._views, self._view) as (store, connection):
            if asked.everything:
                rows = connection.execute(
                    "SELECT id FROM records WHERE status <> 'forgotten' ORDER BY position"
                )
                held = [words.record_id for it in all_held(store) if (words := it.body(HeldWords))]
                ids, refs = [*(id_text(kept) for (kept,) in rows), *held], []
            else:
                refs = [asked.source] if asked.source else _said_in(store, asked.session or "")
                ids = [record_id for ref in refs for record_id in _derived(store, ref)]
            return Fall(
                records=tuple(_lines(store, dict.fromkeys(ids))),
                messages=tuple(ref for ref in refs if _is_captured(store, ref)),
                prepared=tuple(
                    FallingIntent(operation_id=it.operation_id, content=_meant(it))
                    for it in _open_intents(store, connection)
                    if asked.everything or it.value["id"] in ids or _cites(it, refs)
                ),
            )


def _open_intents(store: SealedStore, connection: sqlite3.Connection) -> Iterator[IntentBody]:
    rows = connection.execute("SELECT position FROM open_operations ORDER BY position")
    events = store.at_positions([position for (position,) in rows])
    bodies = (events[position].body(IntentBody) for position in sorted(events))
    yield from filter(None, bodies)


def _meant(intent: IntentBody) -> str | None:
    content = intent.value.get("content")
    return content if isinstance(content, str) else None


def _cites(intent: IntentBody, refs: Iterable[str]) -> bool:
    listed = intent.value.get("sources")
    cited = [str(it["ref"]) for it in listed] if isinstance(listed, list) else []
    return any(overlapping_any(ref, cited) for ref in refs)


def _said_in(store: SealedStore, session_id: str) -> list[str]:
    """The addresses of a session's messages, as far as they are still there."""
    events = store.select(session_messages(session_id)._replace(newest=False))
    messages = (event.body(Message) for event in events)
    return [message_ref(it.session_id, it.seq).address for it in messages if it]


def _derived(store: SealedStore, ref: str) -> Iterator[str]:
    """The records, live or held, that any revision bound to a range of the ref."""
    for owner in dict.fromkeys(owner_of(event) for event in store.select(users_of(ref))):
        stored = stored_in(store.select(owner)[0])
        if stored is None:
            continue
        if not isinstance(stored.value, Record):
            if any(overlap(ref, it) for it in stored.value.blocked_sources):
                yield stored.value.id
            continue
        revisions = (stored_in(event) for event in store.select(history_of(stored.value.id)))
        carried = (it for revision in revisions if revision for it in source_refs(revision.value))
        if any(overlap(ref, it) for it in carried):
            yield stored.value.id


def _is_captured(store: SealedStore, ref: str) -> bool:
    parsed, seen = parse_ref(ref), Seen()
    if parsed is None:
        return False
    seen.look(store, [message_guard(parsed.address)])
    return captured_at(seen, parsed.address) is not None


def _lines(store: SealedStore, record_ids: Iterable[str]) -> Iterator[FallingRecord]:
    for record_id in record_ids:
        (event,) = store.select(newest_of(record_id))
        stored = stored_in(event)
        content = _content(store, stored) if stored else None
        if stored is not None and content is not None:
            yield FallingRecord(
                record_id=stored.value.id,
                revision=stored.value.revision,
                status=stored.value.status,
                content=content,
            )


def _content(store: SealedStore, stored: Stored) -> str | None:
    """What a record says, or what is held of it; None once it is gone for good."""
    if isinstance(stored.value, Record):
        return stored.value.content
    held = still_held(store.select(held_on(stored.value.id)))
    words = held[-1].body(HeldWords) if held else None
    return words.content if words else None
