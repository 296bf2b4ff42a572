"""What is held for the person: words that a model's session forgot, until their window is over."""

from collections.abc import Iterable

from memoranda.ledger.entries import Event, Selector, Store, Tag
from memoranda.ledger.events import ForgetHeld, ForgetReleased

FORGET_TAG = Tag("forget", "")
"""Stands on what names keys to remove, on what is held and released, and on every completion.

What is pending, and what is due, is found by it at once.
"""

HELD = Selector(FORGET_TAG, (ForgetHeld,), newest=False)
RELEASED = Selector(FORGET_TAG, (ForgetReleased,))


def held_on(record_id: str) -> Selector:
    """Everything that was ever held of the record."""
    return Selector(Tag("personal:rec", record_id), (ForgetHeld,), newest=False)


def still_held(events: Iterable[Event]) -> list[Event]:
    """Those of the held copies that are still there."""
    return [event for event in events if event.row.key_id is not None]


def all_held(store: Store) -> list[Event]:
    """Everything that is held now, in the order of the forgets."""
    released = store.select(RELEASED)
    header = released[0].header if released else None
    after = header.through if isinstance(header, ForgetReleased) else 0
    return still_held(store.select(HELD, after))


def until_of(held: Event) -> int:
    """When the window of a held copy ends, in microseconds."""
    return _header(held).until


def revision_of(held: Event) -> int:
    """Which revision of its record said what is held."""
    return _header(held).revision


def _header(held: Event) -> ForgetHeld:
    assert isinstance(held.header, ForgetHeld), "the selectors ask for one shape"
    return held.header
