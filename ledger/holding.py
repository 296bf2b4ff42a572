"""What is held for the person: words that a model's session forgot, until their window is over."""

from collections.abc import Iterable, Sequence

from memoranda.ledger.entries import Draft, Event, Selector, Store, Tag
from memoranda.ledger.events import ForgetDue, ForgetHeld, ForgetReleased

FORGET_TAG = Tag("forget", "")
"""Stands on what names keys to remove, on what is held and released, and on every completion.

What is pending, and what is due, is found by it at once.
"""

HELD = Selector(FORGET_TAG, (ForgetHeld,), newest=False)
DUE = Selector(FORGET_TAG, (ForgetDue,), newest=False)
RELEASED = Selector(FORGET_TAG, (ForgetReleased,))

CONFIRMED_US = 600_000_000
"""How much later the clock is read again before it is believed that a window is over."""

FAR_US = 7 * 86_400_000_000
"""A first reading so long after a window's end may as well mean that its start was misread."""


def due(reading: int) -> Draft:
    """The event that keeps a first reading beyond a window."""
    return Draft(ForgetDue(reading=reading), tags=(FORGET_TAG,))


def readings_since(store: Store, held: Sequence[Event]) -> list[tuple[int, int]]:
    """The (position, reading) pairs beyond some window, since the first of what is held."""
    if not held:
        return []
    events = store.select(DUE, after=held[0].position - 1)
    return [(it.position, it.header.reading) for it in events if isinstance(it.header, ForgetDue)]


def ends_at(held: Event, readings: Iterable[tuple[int, int]], clock: int) -> int | None:
    """When the window is over by the clock, in microseconds; None before any reading beyond it.

    One wrong reading of the clock ends nothing, whether it is this one, an earlier one, or that at
    the forget itself: a second one has to lie `CONFIRMED_US` behind the first, or a whole window
    where the first was not shortly after the end.
    """
    header = _header(held)
    window, shortly = header.until - header.since, range(header.until, header.until + FAR_US)
    later = (it for position, it in readings if position > held.position and it <= clock)
    seen = (it for it in later if is_beyond(held, it))
    return min((it + (CONFIRMED_US if it in shortly else window) for it in seen), default=None)


def is_beyond(held: Event, reading: int) -> bool:
    """Whether a reading of the clock lies outside the window of what is held."""
    header = _header(held)
    return not header.since <= reading < header.until


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
