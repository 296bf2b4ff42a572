"""Replaying the forget journal over a restored log: what was forgotten since is forgotten again.

The keys of what was forgotten are gone, so nothing but the journal's sealed tombstones can tell
what must fall. Each is appended anew, as the next revision of the record that the log holds, unless
another line of the log has told the same forget, and all of it stands here already.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from memoranda.ledger.case import OPERATION
from memoranda.ledger.entries import SPACE_KEY, Draft, Event, Row, Selector, Tag
from memoranda.ledger.errors import IntegrityFault
from memoranda.ledger.events import (
    ConflictChanged,
    ForgetReleased,
    Header,
    MessageCaptured,
    MessageForgotten,
    OperationAborted,
    OperationPrepared,
    RecordBody,
    RecordCommitted,
    Value,
)
from memoranda.ledger.personal import Tombstone
from memoranda.ledger.sealed_store import DecidingStore
from memoranda.ledger.shapes import read_header

FORGETTING = (RecordCommitted, OperationAborted, MessageForgotten, ForgetReleased)
ON_RECORD = (RecordCommitted, OperationPrepared)


@dataclass
class Replayed:
    """What a replay did; `messages` are those that shared a key with what was forgotten."""

    records: int = 0
    messages: int = 0
    removed_keys: set[str] = field(default_factory=set)


def check_rows(rows: Iterable[Row]) -> None:
    """Raises IntegrityFault for a row that is no forget, that a later version wrote, or a part."""
    for row in rows:
        header = read_header(row.type, row.header)
        if not isinstance(header, FORGETTING):
            raise IntegrityFault(f"the forget journal holds an event of type {row.type}")
        if isinstance(header, RecordCommitted) and (row.key_id is None or row.sealed is None):
            raise IntegrityFault("the forget journal holds a tombstone that has lost its body")


def replay(store: DecidingStore, rows: Sequence[Row]) -> Replayed:
    """Forgets again whatever the log, which is older, does not know to be forgotten."""
    done = Replayed()
    missing = [store.event(row) for row in rows if not _stands(store, row)]
    fallen = []
    for event in missing:
        # Of two lines' the first is enough, also where neither stands here.
        if _is_told(store, event):
            continue
        fallen.append(event)
        if isinstance(event.header, OperationAborted):
            _abort(store, event)
        if isinstance(event.header, MessageForgotten):
            _forget_messages(store, event, event.header.removed_keys, done)
        if isinstance(event.header, ForgetReleased):
            _release(store, event, event.header)
    for tombstones in _by_record(fallen).values():
        _forget(store, tombstones, done)
    done.removed_keys |= named_keys(rows)
    return done


def _stands(store: DecidingStore, row: Row) -> bool:
    event = store.at(row.position)
    return event is not None and event.row.chain == row.chain


def _is_told(store: DecidingStore, event: Event) -> bool:
    """Whether this log has the same forget at another place, and no body that it would take."""
    if any(store.bodies_under(key_id) for key_id in _removed_keys(event)):
        return False
    if isinstance(event.header, RecordCommitted):
        end = _end_of(store, event)
        return isinstance(end, RecordCommitted) and end.status == "forgotten"
    if isinstance(event.header, OperationAborted):
        return False
    held = [tag for tag in event.row.tags if tag.startswith(("msg:", "held:"))]
    shape = (type(event.header),)
    return all(store.select(Selector(Tag("", "", tag), shape)) for tag in held)


def _end_of(store: DecidingStore, event: Event) -> Header | None:
    """The receipt that the log has for the operation of an event; an intent is none."""
    operation = event.tag("personal:op")
    newest = store.select(Selector(operation, OPERATION)) if operation else []
    is_open = not newest or isinstance(newest[0].header, OperationPrepared)
    return None if is_open else newest[0].header


def _by_record(events: Iterable[Event]) -> Mapping[str, list[Event]]:
    """Tombstones by the blind tag of their record, in the order of the forgets."""
    found: dict[str, list[Event]] = {}
    for event in events:
        tag = event.tag("personal:rec")
        if isinstance(event.header, RecordCommitted) and tag and tag.blind:
            found.setdefault(tag.blind, []).append(event)
    return found


def _forget(store: DecidingStore, tombstones: Sequence[Event], done: Replayed) -> None:
    """One tombstone for all of a record's forgets: it blocks and removes what any of them did."""
    latest = tombstones[-1]
    record = latest.tag("personal:rec")
    assert record is not None, "the tombstones were found by it"
    standing = store.select(Selector(record, (RecordCommitted,)))
    current = standing[0] if standing else None
    revision = _revision(current)
    falling = {row.position: row for row in _falling(store, tombstones, record)}
    if not falling and _covers(store, record, tombstones):
        return
    keys = [key_id for event in tombstones for key_id in _header(event).removed_keys]
    keys += [row.key_id for row in falling.values() if row.key_id is not None]
    body = _body(tombstones, current)
    header = _header(latest).model_copy(
        update={
            "from_revision": revision,
            "to_revision": body.value["revision"],
            "term": store.head.term,
            "removed_keys": tuple(dict.fromkeys(keys)),
            "intent": _intent(store, latest),
            # The first of its id here: it was made and forgotten behind the copy.
            "is_migrated": current is None,
        }
    )
    named = [tag for event in tombstones for tag in _tags_of(event, latest)]
    if _end_of(store, latest):
        named = [tag for tag in named if not tag.startswith("op:")]
    lost = [tag for row in falling.values() for tag in _message_tags(row) if tag not in named]
    held = [tag for row in falling.values() for tag in _open_intent(store, row)]
    tags = dict.fromkeys((*named, *lost, *held))
    store.append(Draft(header, body, tuple(Tag("", "", tag) for tag in tags)))
    store.erase_bodies(falling)
    done.records += 1
    done.messages += len(set(lost))
    done.removed_keys.update(keys)


def _covers(store: DecidingStore, record: Tag, tombstones: Sequence[Event]) -> bool:
    """Whether the record stands forgotten here, with everything that these would block."""
    standing = store.select(Selector(record, (RecordCommitted,), newest=False))
    if not standing or _header(standing[-1]).status != "forgotten":
        return False
    before = [event for event in standing if _header(event).status == "forgotten"]
    return _blocked(tombstones) <= _blocked(before)


def _blocked(tombstones: Iterable[Event]) -> set[str]:
    """The sources that tombstones block, and the messages whose end they explain."""
    bodies = [body for event in tombstones if (body := event.body(RecordBody))]
    values = [Tombstone.model_validate(body.value) for body in bodies]
    tags = {tag for event in tombstones for tag in event.row.tags if tag.startswith("msg:")}
    return tags | {ref for value in values for ref in value.blocked_sources}


def _forget_messages(
    store: DecidingStore, forgotten: Event, keys: Sequence[str], done: Replayed
) -> None:
    """Messages that were forgotten for themselves; in the copy others may share their key."""
    rows = [row for key_id in keys for row in store.bodies_under(key_id)]
    lost = [tag for row in rows for tag in _message_tags(row) if tag not in forgotten.row.tags]
    tags = dict.fromkeys((*forgotten.row.tags, *lost))
    store.append(Draft(forgotten.header, tags=tuple(Tag("", "", tag) for tag in tags)))
    store.erase_bodies(row.position for row in rows)
    done.messages += len(set(lost))


def _release(store: DecidingStore, event: Event, released: ForgetReleased) -> None:
    """What was held when the copy was made, and let go of since."""
    rows = [row for key_id in released.removed_keys for row in store.bodies_under(key_id)]
    # Up to which position nothing is held, was said of another line of the log.
    header = released.model_copy(update={"through": 0})
    store.append(Draft(header, tags=tuple(Tag("", "", tag) for tag in event.row.tags)))
    store.erase_bodies(row.position for row in rows)


def _falling(store: DecidingStore, tombstones: Sequence[Event], record: Tag) -> Iterator[Row]:
    """Every body that the forgets took, by their keys and by the record."""
    for event in tombstones:
        for key_id in _header(event).removed_keys:
            yield from store.bodies_under(key_id)
    body = tombstones[-1].body(RecordBody)
    assert body is not None, "the space's own bodies stay"
    about = Tag("personal:con", str(body.value["id"]))
    events = [
        *store.select(Selector(record, ON_RECORD, newest=False)),
        *store.select(Selector(about, (ConflictChanged,), newest=False)),
    ]
    yield from (event.row for event in events if event.row.key_id not in {None, SPACE_KEY})


def _body(tombstones: Sequence[Event], current: Event | None) -> RecordBody:
    """The latest tombstone, as the next revision of what the log holds now."""
    bodies = [body for event in tombstones if (body := event.body(RecordBody))]
    values = [Tombstone.model_validate(body.value) for body in bodies]
    blocked = dict.fromkeys(ref for value in values for ref in value.blocked_sources)
    revision = (_revision(current) or values[-1].revision - 1) + 1
    value = values[-1].model_copy(update={"revision": revision, "blocked_sources": tuple(blocked)})
    return bodies[-1].model_copy(
        update={
            "expected": current.row.commitment.hex() if current else None,
            "value": value.model_dump(mode="json"),
        }
    )


def _tags_of(event: Event, latest: Event) -> list[str]:
    """What a tombstone explains and blocks; only the latest one's operation is told again."""
    return [tag for tag in event.row.tags if event is latest or not tag.startswith("op:")]


def _open_intent(store: DecidingStore, row: Row) -> list[str]:
    """The operation of an intent that the log holds open: what it meant to write is forgotten."""
    if row.type != OperationPrepared.TOPIC:
        return []
    operations = [tag for tag in row.tags if tag.startswith("op:")]
    newest = [store.select(Selector(Tag("", "", tag), OPERATION)) for tag in operations]
    is_open = all(events and events[0].position == row.position for events in newest)
    return operations if is_open else []


def _message_tags(row: Row) -> list[str]:
    is_message = row.type == MessageCaptured.TOPIC
    return [tag for tag in row.tags if tag.startswith("msg:")] if is_message else []


def _intent(store: DecidingStore, event: Event) -> str | None:
    """The intent that the forget ends, where the log holds it."""
    operation = event.tag("personal:op")
    if operation is None or _end_of(store, event):
        return None
    found = store.select(Selector(operation, (OperationPrepared,)))
    return found[0].row.commitment.hex() if found else None


def _abort(store: DecidingStore, aborted: Event) -> None:
    """Ends an intent again that the log holds open, and takes its content with it."""
    operation, body = aborted.tag("personal:op"), aborted.body(Value)
    assert operation is not None, "every operation's event has its tag"
    assert isinstance(aborted.header, OperationAborted), "the caller has looked"
    newest = store.select(Selector(operation, OPERATION))
    if not newest or not isinstance(newest[0].header, OperationPrepared):
        return
    header = aborted.header.model_copy(update={"term": store.head.term})
    store.append(Draft(header, body, tuple(Tag("", "", tag) for tag in aborted.row.tags)))
    store.erase_bodies([newest[0].position])


def _revision(current: Event | None) -> int | None:
    header = current.header if current else None
    return header.to_revision if isinstance(header, RecordCommitted) else None


def _header(event: Event) -> RecordCommitted:
    assert isinstance(event.header, RecordCommitted), "tombstones are records"
    return event.header


def named_keys(rows: Iterable[Row]) -> set[str]:
    """The keys of all that the rows of a journal forget; no body is opened."""
    return {key_id for row in rows for key_id in _removed_keys(Event(row, lambda _: None))}


def _removed_keys(event: Event) -> tuple[str, ...]:
    assert isinstance(event.header, FORGETTING), "the rows were checked"
    return event.header.removed_keys
