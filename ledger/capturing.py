"""Taking a message into the log, once per address, under the key of its session and day."""

from collections.abc import Callable

from memoranda.ledger.entries import FRESH_KEY, Draft, Event, Selector, Tag
from memoranda.ledger.errors import Refusal, Refused
from memoranda.ledger.events import Message, MessageCaptured, MessageHidden, Value
from memoranda.ledger.guards import Seen, captured_at, message_guard
from memoranda.ledger.sealed_store import DecidingStore
from memoranda.ledger.sources import message_ref
from memoranda.ledger.stamps import moment_of, time_text

BUCKET_MESSAGES = 64
"""Messages of one session and day under one data key (DESIGN 5), and in one transaction."""

_DAY_US = 86_400_000_000


class CaptureReceipt(Value):
    """A message taken in; `replayed` when it was there already."""

    ref: str
    position: int
    replayed: bool = False


def session_messages(session_id: str) -> Selector:
    """The newest captured message of a session."""
    return Selector(Tag("ses", session_id), (MessageCaptured,))


def take_message(
    store: DecidingStore, session_id: str, seq: int, message_at: Callable[[str], Message]
) -> CaptureReceipt | Refused:
    """Takes one message in; `message_at` says it, at a time given where it names none itself."""
    ref = message_ref(session_id, seq).address
    guard, session = message_guard(ref), session_messages(session_id)
    seen = Seen()
    seen.look(store, (guard, session))
    if seen.all(guard):
        return _again(store, seen, ref, message_at)
    key_id, bucket = _bucket(store, seen.one(session))
    body = message_at(time_text(moment_of(store.clock)))
    draft = Draft(MessageCaptured(bucket=bucket), body, (guard.tag, session.tag), key_id)
    return CaptureReceipt(ref=ref, position=store.append(draft).position)


def _again(
    store: DecidingStore, seen: Seen, ref: str, message_at: Callable[[str], Message]
) -> CaptureReceipt | Refused:
    guard = message_guard(ref)
    known = captured_at(seen, ref)
    if known is None:
        return Refused(Refusal.SOURCE_FORGOTTEN, "seq")
    again = message_at(known.message.occurred_at)
    if again.model_copy(update={"hidden": known.message.hidden}) != known.message:
        return Refused(Refusal.OPERATION_CONFLICT, "seq", "another message has this address")
    if again.hidden and not (known.message.hidden or known.is_hidden):
        store.append(Draft(MessageHidden(), tags=(guard.tag,)))
    return CaptureReceipt(ref=ref, position=seen.all(guard)[0].position, replayed=True)


def _bucket(store: DecidingStore, newest: Event | None) -> tuple[str, int]:
    """The data key for a session's next message, and its place among those under that key."""
    if newest is None or newest.row.key_id is None:
        return FRESH_KEY, 1
    assert isinstance(newest.header, MessageCaptured), "the selector asks for one shape"
    is_same_day = newest.recorded_at // _DAY_US == store.now // _DAY_US
    if not is_same_day or newest.header.bucket >= BUCKET_MESSAGES:
        return FRESH_KEY, 1
    return newest.row.key_id, newest.header.bucket + 1
