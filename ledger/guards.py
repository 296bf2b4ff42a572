"""What must still hold at the append: binding, task, authorization, sources, as boundary lines.

Guard tags stand on guard events only, so that reading a guard does not grow with the traffic.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from memoranda.ledger.authority import (
    Action,
    BackgroundItem,
    Caller,
    Role,
    item_refusal,
    role_of,
    role_refusal,
)
from memoranda.ledger.entries import Event, Selector, Store, Tag
from memoranda.ledger.errors import Refusal, Refused
from memoranda.ledger.events import (
    Authorization,
    AuthorizationChanged,
    Binding,
    BindingChanged,
    DataSets,
    Message,
    MessageCaptured,
    MessageHidden,
    Task,
    TaskChanged,
    Value,
)
from memoranda.ledger.sources import Captured

B = TypeVar("B", bound=Value)

BINDING = Selector(Tag("binding", ""), (BindingChanged,))


Observed = Mapping[Selector, list[Event]]
NOTHING: Observed = {}


class Seen:
    """What a boundary has shown so far: the events behind each of its selectors."""

    def __init__(self, found: Observed = NOTHING) -> None:
        self._found = dict(found)

    def look(self, store: Store, boundary: Iterable[Selector]) -> bool:
        """Reads the selectors not yet seen; whether any showed something to ask on from."""
        new = [selector for selector in dict.fromkeys(boundary) if selector not in self._found]
        found = store.select_each(new)
        self._found |= zip(new, found, strict=True)
        return any(found)

    def all(self, selector: Selector) -> list[Event]:
        return self._found.get(selector, [])

    def one(self, selector: Selector) -> Event | None:
        return next(iter(self.all(selector)), None)

    def body(self, selector: Selector, shape: type[B]) -> B | None:
        """The body behind the newest event; None when there is no event."""
        event = self.one(selector)
        return event.body(shape) if event else None


def task_guard(item_id: str) -> Selector:
    return Selector(Tag("task", item_id), (TaskChanged,))


def authorization_guard(authorization_id: str) -> Selector:
    return Selector(Tag("grant", authorization_id), (AuthorizationChanged,))


def message_guard(address: str) -> Selector:
    """A captured message and whatever happened to it."""
    return Selector(Tag("msg", address), (MessageCaptured, MessageHidden), newest=False)


@dataclass(frozen=True, slots=True)
class Guards:
    """The guards of one caller as they stand."""

    role: Role | None
    binding: Binding | None
    task: Task | None
    authorization: Authorization | None

    def is_bound_by(self, data_sets: DataSets) -> bool:
        """Whether the providers are those that the space was bound by (F29)."""
        return self.binding is None or self.binding.data_sets == data_sets

    def item_refusal(self, caller: Caller) -> Refusal | None:
        """Whether a background item is under its exact authorization; None for others."""
        if not isinstance(caller, BackgroundItem) or self.task is None:
            return None
        return item_refusal(caller, self.task, self.authorization)


def caller_boundary(caller: Caller) -> Iterator[Selector]:
    """The selectors that decide who the caller is and whether it may still act."""
    yield BINDING
    if isinstance(caller, BackgroundItem):
        yield task_guard(caller.item_id)
        if caller.authorization_id is not None:
            yield authorization_guard(caller.authorization_id)


def guards_of(seen: Seen, caller: Caller) -> Guards:
    """The caller's guards out of what its boundary has shown."""
    binding = seen.body(BINDING, Binding)
    task = authorization = None
    if isinstance(caller, BackgroundItem):
        task = seen.body(task_guard(caller.item_id), Task)
        if caller.authorization_id is not None:
            selector = authorization_guard(caller.authorization_id)
            authorization = seen.body(selector, Authorization)
    return Guards(role_of(caller, binding, task), binding, task, authorization)


def reader_of(store: Store, caller: Caller, action: Action) -> Guards | Refused:
    """The caller's guards for a read, or why it may not read."""
    seen = Seen()
    seen.look(store, caller_boundary(caller))
    guards = guards_of(seen, caller)
    refusal = role_refusal(action, guards.role)
    if refusal is None and action == "operation":
        refusal = guards.item_refusal(caller)
    return Refused(refusal) if refusal else guards


def captured_at(seen: Seen, address: str) -> Captured | None:
    """The message at an address; None when it was never captured, or was erased."""
    events = seen.all(message_guard(address))
    messages = (e.body(Message) for e in events if isinstance(e.header, MessageCaptured))
    message = next(messages, None)
    is_hidden = any(isinstance(event.header, MessageHidden) for event in events)
    return Captured(message, is_hidden) if message else None
