"""What a host may own instead of the log: conversations, tasks and authorizations (PM 3.2).

A provider answers what stands, and keeps it from changing while its protection is held. It is
asked outside the space's lock; inside it only `fence` is compared, which must not block.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from memoranda.ledger.events import Authorization, Binding, DataSets, Message, Task

S = TypeVar("S")

PROTECT_WITHIN_S = 5.0
"""How long the providers may take together to protect what they answer."""

FENCE_WITHIN_S = 1.0
"""How long they may take inside the lock, where nobody else commits meanwhile."""

RELEASE_WITHIN_S = 1.0
"""How long they are waited for as they let go: what was decided is decided."""


@dataclass(frozen=True, slots=True)
class Protected(Generic[S]):
    """What stands, and the provider's fencing number at that moment, of 64 bits.

    All of it is copied once, on the provider's own thread, and then judged like a request.
    """

    state: S
    token: int


@dataclass(frozen=True, slots=True)
class Conversation:
    """Who is bound as the primary session, and the messages asked for by their addresses.

    `rebinds` is a fencing number of who is bound alone, of 64 bits: it moves with every rebind,
    even one that was put back under the same binding id, and outlives a restart. The
    conversation's own number may go on with every message; an intent outlives that.
    """

    binding: Binding | None
    messages: Mapping[str, Message | None]
    rebinds: int


class Provider(Protocol[S]):
    """One authority. `data_set` names its data; another provider may only replace it with that."""

    @property
    def data_set(self) -> str:
        """Asked once, as the ledger is opened."""
        ...

    def protect(
        self, names: Sequence[str], within_s: float
    ) -> AbstractContextManager[Protected[S]]:
        """Keeps what is named from changing until it is left, on whatever thread that is."""
        ...

    def fence(self, names: Sequence[str]) -> int:
        """The fencing number now: it has moved when a protection no longer holds, and with every
        change of what is named, even one that was put back, for an intent outlives neither.

        It must outlive a restart. One number for all names will do: it fences more than it must.
        """
        ...


class Conversations(Provider[Conversation], Protocol):
    """The names are the references of whole messages."""


class Tasks(Provider[Task | None], Protocol):
    """The name is the item's id."""


class Authorizations(Provider[Authorization | None], Protocol):
    """The name is the authorization's id; its `guard_capable` says whether this port guards it."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Who owns what; None is the log itself. `data_sets` are asked for, whatever is given."""

    conversations: Conversations | None = None
    tasks: Tasks | None = None
    authorizations: Authorizations | None = None
    data_sets: DataSets = field(default_factory=DataSets)

    @property
    def are_embedded(self) -> bool:
        return not self.selected

    @property
    def selected(self) -> Mapping[str, Provider[Any]]:
        """The providers by name, in the order in which they are asked."""
        named: dict[str, Provider[Any] | None] = {
            "conversations": self.conversations,
            "tasks": self.tasks,
            "authorizations": self.authorizations,
        }
        return {name: port for name, port in named.items() if port is not None}


EMBEDDED = Ports()
"""The log owns all of it."""
